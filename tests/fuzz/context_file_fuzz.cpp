// libFuzzer on the reader of context files. Mutations get their checksums right again, or the reader would
// look no further. Breaks (crashes, leaks, runs out of memory) if the reader believes what a file says.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/hash.hpp"
#include "engine/context_file.hpp"
#include "engine/session.hpp"
#include "fuzz_model.hpp"
#include "holdfast/error.hpp"

namespace {

using namespace holdfast;

struct World {
    GgufModel model{fuzz_model_path()};
    Compute compute{1};
    DecoderGraph decoder{model, compute};
};

void correct_checksums(std::uint8_t* data, std::size_t size) {
    constexpr std::size_t block = 4096, first_entry = 40, sections = 5;
    if (size < block) return;
    for (std::size_t s = 0; s < sections; ++s) {
        std::uint64_t entry[3];
        std::memcpy(entry, data + first_entry + s * sizeof entry, sizeof entry);
        const std::uint64_t padded = (entry[1] + block - 1) / block * block;
        if (entry[0] > size || padded > size - entry[0]) continue;
        entry[2] = XXH3_64bits(data + entry[0], padded);
        std::memcpy(data + first_entry + s * sizeof entry, entry, sizeof entry);
    }
    const std::uint64_t bytes = size;
    std::memcpy(data + 16, &bytes, sizeof bytes);
    const std::uint64_t header = XXH3_64bits(data, block - 8);
    std::memcpy(data + block - 8, &header, sizeof header);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
    size = LLVMFuzzerMutate(data, size, most);
    if (seed % 16 != 0) correct_checksums(data, size);
    return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static World world;
    const int file = memfd_create("context", 0);
    if (file < 0 || write(file, data, size) != ssize_t(size)) __builtin_trap();
    try {
        const ReadContext context = ContextFile("/proc/self/fd/" + std::to_string(file)).context(world.model);
        // What was believed must be usable.
        TokenSession session(world.decoder, context.cache, world.model.parameters().context_length, {});
        const int token = 1;
        session.read({&token, 1});
    } catch (const Error&) {  // refused
    }
    close(file);
    return 0;
}
