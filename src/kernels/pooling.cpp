#include "kernels/pooling.hpp"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pooling.cpp"
#include "hwy/foreach_target.h"
#include "kernels/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {

void RaiseToPooled(const float* row, std::size_t count, int kernel, float factor, float* most, float* sum) {
    const Floats d;
    const float* first = row - kernel / 2;
    std::size_t k = 0;
    for (; k + kLanes <= count; k += kLanes) {
        Vector pooled = hn::Zero(d);
        for (int i = 0; i < kernel; ++i) pooled = hn::Add(pooled, hn::LoadU(d, first + k + i));
        pooled = hn::Mul(hn::Div(pooled, hn::Set(d, float(kernel))), hn::Set(d, factor));
        hn::StoreU(hn::Max(hn::LoadU(d, most + k), pooled), d, most + k);
        hn::StoreU(hn::Add(hn::LoadU(d, sum + k), hn::LoadU(d, row + k)), d, sum + k);
    }
    for (; k < count; ++k) {
        float pooled = 0;
        for (int i = 0; i < kernel; ++i) pooled += first[k + std::size_t(i)];
        most[k] = std::max(most[k], pooled / float(kernel) * factor);
        sum[k] += row[k];
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast {

HWY_EXPORT(RaiseToPooled);

void raise_to_pooled(const float* row, std::size_t count, int kernel, float factor, float* most, float* sum) {
    HWY_DYNAMIC_DISPATCH(RaiseToPooled)(row, count, kernel, factor, most, sum);
}

}  // namespace holdfast
#endif
