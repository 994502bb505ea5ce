// The inner loop that all kernels share: rows times a panel of 32 columns.
//   C[r, 0..32) = A[r, 0..depth) · B[0..depth, 0..32)
// B is a panel of packed weights, the keys of a page (depth = head_dim), or 32 columns of the values of
// a page (depth = tokens). Each element is one chain of fused multiply-adds over the depth, so it has
// the same bits whatever the tile and the vector length.
// clang-format off
#if defined(HOLDFAST_PANEL_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef HOLDFAST_PANEL_INL
#undef HOLDFAST_PANEL_INL
#else
#define HOLDFAST_PANEL_INL
#endif
// clang-format on

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;
constexpr int kLanes = int(hn::MaxLanes(Floats()));
constexpr int kPanel = 32;
constexpr int kVectors = kPanel / kLanes;         // of one panel row
constexpr int kTileRows = kLanes == 16 ? 12 : 3;  // as many as the registers hold

// a·b + c, rounded once on every target.
HWY_INLINE Vector FusedMulAdd(Vector a, Vector b, Vector c) {
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
    const Floats d;
    alignas(64) float x[kLanes], y[kLanes], z[kLanes];
    hn::Store(a, d, x);
    hn::Store(b, d, y);
    hn::Store(c, d, z);
    for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
    return hn::Load(d, z);
#else
    return hn::MulAdd(a, b, c);
#endif
}

HWY_INLINE Vector LoadFloats(const float* from) {
    return hn::LoadU(Floats(), from);
}
HWY_INLINE Vector LoadFloats(const std::uint16_t* from) {  // fp16
    const hn::Rebind<hwy::float16_t, Floats> half;
    return hn::PromoteTo(Floats(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
}

// Into the second-level cache, which has more requests in flight than the first: on Zen 4 three times the
// rate.
HWY_INLINE void PrefetchLine(const void* line) {
    __builtin_prefetch(line, 0, 2);
}

// One tile of Rows ≤ kTileRows rows. With `add`, C's old values start the chains. With Ahead, the `depth`
// cache lines from `ahead` on are prefetched, one with each step.
template <int Rows, bool Ahead, class Element>
HWY_NOINLINE void PanelTile(std::size_t depth, const float* HWY_RESTRICT a, std::size_t a_stride,
                            const Element* HWY_RESTRICT b, std::size_t b_stride, float* HWY_RESTRICT c,
                            std::size_t c_stride, bool add, const Element* ahead) {
    const Floats d;
    Vector sum[Rows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
            sum[r][v] = add ? hn::LoadU(d, c + r * c_stride + v * kLanes) : hn::Zero(d);
    for (std::size_t k = 0; k < depth; ++k) {
        if constexpr (Ahead) PrefetchLine(ahead + k * (64 / sizeof(Element)));
        Vector row[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) row[v] = LoadFloats(b + k * b_stride + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            const Vector broadcast = hn::Set(d, a[r * a_stride + k]);
#pragma GCC unroll 16
            for (int v = 0; v < kVectors; ++v) sum[r][v] = FusedMulAdd(broadcast, row[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * c_stride + v * kLanes);
}

template <int Rows = kTileRows, bool Ahead = false, class Element>
HWY_INLINE void OneTile(int rows, std::size_t depth, const float* a, std::size_t a_stride, const Element* b,
                        std::size_t b_stride, float* c, std::size_t c_stride, bool add,
                        const Element* ahead = nullptr) {
    if constexpr (Rows > 0) {
        if (rows == Rows)
            PanelTile<Rows, Ahead>(depth, a, a_stride, b, b_stride, c, c_stride, add, ahead);
        else
            OneTile<Rows - 1, Ahead>(rows, depth, a, a_stride, b, b_stride, c, c_stride, add, ahead);
    }
}

// All rows: tiles of equal height as far as possible.
template <class Element>
HWY_INLINE void PanelRows(int rows, std::size_t depth, const float* a, std::size_t a_stride, const Element* b,
                          std::size_t b_stride, float* c, std::size_t c_stride, bool add) {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (int tile = 0; tile < tiles; ++tile) {
        const int begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
        OneTile(end - begin, depth, a + begin * a_stride, a_stride, b, b_stride, c + begin * c_stride,
                c_stride, add);
    }
}

// fp16 → fp32, `count` a multiple of 16.
HWY_INLINE void Promote(const std::uint16_t* from, std::size_t count, float* to) {
    const Floats d;
    for (std::size_t i = 0; i < count; i += kLanes) hn::StoreU(LoadFloats(from + i), d, to + i);
}

// e^x for x ≤ 0, error below 2 units in the last place; 0 below -87.
// Argument reduction to |r| ≤ ln2/2 with a two-part ln2, then the Taylor polynomial of degree 7.
HWY_INLINE Vector ExpNonPositive(Vector x) {
    const Floats d;
    const hn::RebindToSigned<Floats> di;
    const auto tiny = hn::Lt(x, hn::Set(d, -87.0f));
    x = hn::Max(x, hn::Set(d, -87.0f));
    const Vector n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
    Vector r = FusedMulAdd(n, hn::Set(d, -0.693145752f), x);
    r = FusedMulAdd(n, hn::Set(d, -1.42860677e-6f), r);
    Vector p = hn::Set(d, 1.0f / 5040);
    p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 720));
    p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 120));
    p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 24));
    p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 6));
    p = FusedMulAdd(p, r, hn::Set(d, 0.5f));
    p = FusedMulAdd(p, r, hn::Set(d, 1.0f));
    p = FusedMulAdd(p, r, hn::Set(d, 1.0f));
    const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
    return hn::IfThenZeroElse(tiny, hn::Mul(p, hn::BitCast(d, exponent)));
}

// The sums of 16 interleaved lanes, whatever the vector length, then a tree over the 16.
struct LaneSum {
    Vector lanes[16 / kLanes];
    HWY_INLINE LaneSum() {
        for (Vector& lane : lanes) lane = hn::Zero(Floats());
    }
    HWY_INLINE void Add(int vector, Vector value) { lanes[vector] = hn::Add(lanes[vector], value); }
    HWY_INLINE float Total() const {
        alignas(64) float x[16];
        for (int v = 0; v < 16 / kLanes; ++v) hn::Store(lanes[v], Floats(), x + v * kLanes);
        for (int half = 8; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) x[i] += x[i + half];
        return x[0];
    }
};

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#endif
