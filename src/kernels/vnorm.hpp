// The norm of what a token's value adds to the layer's output: CriticalKV's projected value norm.
#pragma once

#include <span>

#include "kernels/matmul.hpp"
#include "kernels/page.hpp"

namespace holdfast {

// norms[t] = mean over the KV head's `group` query heads h of ‖v_t W_h‖₁ for the first `tokens` values of a
// page, W_h the slice of the output projection that belongs to query head h (docs/methods/critical.md).
//   output: the packed output projection [hidden, query heads · head_dim]
//   first_head: the KV head's first query head
//   workspace: [32, head_dim] floats
void projected_value_norms(const fp16_t* page, int tokens, int head_dim, const PackedMatrix& output,
                           int first_head, int group, float* norms, float* workspace);

// The same with the L2 norm, from the Gram matrices of those slices: ‖v W‖₂² = v (W Wᵀ) vᵀ, which needs
// hidden / head_dim times fewer products.
//   grams: of each query head of the group, W_h W_hᵀ [head_dim, head_dim] packed
//   workspace: [64, head_dim rounded up to 32] floats
void gram_value_norms(const fp16_t* page, int tokens, int head_dim, std::span<const PackedMatrix> grams,
                      float* norms, float* workspace);

// W_h W_hᵀ of query head `head`, packed into `panels`; PackedMatrix::elements(head_dim, head_dim) floats.
void pack_gram(const PackedMatrix& output, int head, int head_dim, float* panels);

}  // namespace holdfast
