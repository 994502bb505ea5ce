// A scorer and an allocator of one's own, in a method beside the built-in ones.
//   custom_method MODEL.gguf DOCUMENT
#include <cstdio>
#include <fstream>
#include <iterator>

#include "holdfast/holdfast.hpp"

using namespace holdfast;

// Large values first, whatever their keys say.
struct ValueNormScorer final : Scorer {
    Forced forced() const override { return {4, 16}; }  // the first tokens and the last are kept in any case
    void score(LayerView& layer, std::span<float> importance) override {
        std::ranges::copy(layer.value_norms(ValueNorm::exact), importance.begin());
    }
};

// Early layers get half of what late ones get.
struct RisingAllocator final : Allocator {
    Allocation allocate(const LayerScores& layer) override {
        const LayerShape& s = layer.shape;
        const double share = (2.0 + 2.0 * s.layer / std::max(1, s.layers - 1)) / 3;
        return {
            std::vector<std::uint32_t>(std::size_t(s.kv_heads), std::uint32_t(layer.tokens_per_head * share)),
            0};
    }
};

int main(int argc, char** argv) try {
    ScorerPart scorer;
    scorer.name = "value-norm";
    scorer.make = [](const ScorerContext&) { return std::make_unique<ValueNormScorer>(); };
    register_scorer(scorer);
    AllocatorPart allocator;
    allocator.name = "rising";
    allocator.make = [](const AllocatorContext&) { return std::make_unique<RisingAllocator>(); };
    register_allocator(allocator);

    std::ifstream file(argc > 2 ? argv[2] : "examples/saltmere.txt");
    if (!file) throw std::runtime_error("cannot open the document");
    const std::string document(std::istreambuf_iterator<char>(file), {});
    const Model model(argc > 1 ? argv[1] : default_model_path());
    const Context context =
        model.compress(document, Method::parse("value-norm+rising"), Budget::parse("40%"));
    std::printf("kept of %u tokens by layer:", context.tokens());
    for (int l = 0; l < model.layers(); ++l) std::printf(" %zu", context.kept(l, 0).size());
    std::printf("\n%s\n", context.session().ask("What is this text about?", 32).text.c_str());
} catch (const std::exception& error) {
    std::fprintf(stderr, "custom_method: %s\n", error.what());
    return 1;
}
