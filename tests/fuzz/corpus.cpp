// corpus FOLDER: the contexts that the fuzzer starts from.
#include <cstdio>
#include <exception>

#include "engine/context_file.hpp"
#include "fuzz_model.hpp"

int main(int argc, char** argv) try {
    using namespace holdfast;
    if (argc != 2) return 2;
    const GgufModel model(fuzz_model_path());
    Compute compute(1);
    for (const char* method : {"full", "layer-defensive"})
        for (const int length : {3, 70})
            for (const KvType type : {KvType::f16, KvType::q8_0}) {
                std::vector<int> tokens;
                for (int i = 0; i < length; ++i) tokens.push_back(i * 7 % 64);
                ReadSettings settings;
                settings.method = Method::parse(method);
                settings.budget = Budget::parse("60%");
                ContextInfo info;
                info.method = method;
                info.budget = "60%";
                info.explanation = settings.method.explain();
                info.sources = {{"document.txt", 12, "0123456789abcdef"}};
                info.kv_type = type;
                save_context(std::string(argv[1]) + "/" + method + "-" + std::to_string(length) +
                                 kv_type_name(type) + ".hfkv",
                             model, read_context(model, compute, tokens, settings).cache, tokens, info);
            }
} catch (const std::exception& error) {
    std::fprintf(stderr, "corpus: %s\n", error.what());
    return 1;
}
