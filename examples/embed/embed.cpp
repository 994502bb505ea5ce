// Reads a document once and answers every question of the command line, each in a thread of its own.
//   embed MODEL.gguf DOCUMENT CONTEXT.hfkv QUESTION...
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "holdfast/holdfast.hpp"

using namespace holdfast;

int main(int argc, char** argv) try {
    if (argc < 5)
        throw Error("usage: embed MODEL.gguf DOCUMENT CONTEXT.hfkv QUESTION...", Error::Kind::usage);
    const Model model(argv[1]);
    if (!std::filesystem::exists(argv[3])) {
        std::ifstream file(argv[2]);
        if (!file) throw Error(std::string("cannot open '") + argv[2] + "'");
        CompressOptions options;
        options.progress = [](const ReadProgress& progress) {
            std::fprintf(stderr, "\rreading: %.0f%%", 100 * progress.share());
            return true;
        };
        model
            .compress({std::istreambuf_iterator<char>(file), {}}, Method::parse("layer-defensive"),
                      Budget::parse("20%"), options)
            .save(argv[3]);
        std::fputc('\n', stderr);
    }
    const Context context = model.load(argv[3]);
    std::printf("%u tokens, %zu bytes of keys and values\n", context.tokens(), context.bytes());

    std::vector<std::string> answers(std::size_t(argc - 4));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < answers.size(); ++i)
        threads.emplace_back([&, i] {
            try {
                answers[i] = context.session().ask(argv[i + 4], 32).text;
            } catch (const std::exception& error) {
                answers[i] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < answers.size(); ++i)
        std::printf("%s\n  %s\n", argv[i + 4], answers[i].c_str());
} catch (const std::exception& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
}
