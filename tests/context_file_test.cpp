// Context files: what is saved is what is loaded; what is damaged or made to mislead is refused.
#include "engine/context_file.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "holdfast/error.hpp"
#include "base/hash.hpp"
#include "engine/session.hpp"
#include "holdfast/holdfast.hpp"
#include "model_files.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {
namespace {

using testing::RandomModel;

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
}

// Σ p log(p / q) of the distributions that logits stand for.
double kl_divergence(const std::vector<float>& p, const std::vector<float>& q) {
    const auto log_sum = [](const std::vector<float>& logits) {
        const double most = double(*std::max_element(logits.begin(), logits.end()));
        double sum = 0;
        for (float x : logits) sum += std::exp(double(x) - most);
        return most + std::log(sum);
    };
    const double of_p = log_sum(p), of_q = log_sum(q);
    double divergence = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
        const double log_p = double(p[i]) - of_p;
        divergence += std::exp(log_p) * (log_p - double(q[i]) + of_q);
    }
    return divergence;
}

// Files beside `path` that a save left there.
int leftovers(const std::string& path) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()))
        count += entry.path().string().starts_with(path + ".");
    return count;
}

class ContextFiles : public ::testing::Test {
  protected:
    static std::string model_path(std::uint32_t seed) {
        RandomModel random = testing::small_model();
        random.gain = 3;
        random.seed = seed;
        std::string path = testing::temporary_path("context-file-" + std::to_string(seed) + ".gguf");
        if (!std::filesystem::exists(path)) write_random_model(path, random);
        return path;
    }

    ContextFiles() : model(model_path(1)), compute(2), decoder(model, compute) {
        std::mt19937 random(5);
        for (int i = 0; i < 333; ++i) tokens.push_back(int(random() % 320));
    }

    ReadContext read(const char* method = "layer-defensive", const char* budget = "30%") {
        ReadSettings settings;
        settings.method = Method::parse(method);
        settings.budget = Budget::parse(budget);
        return read_context(model, compute, tokens, settings);
    }
    std::string save(const ReadContext& context, KvType type = KvType::f16) {
        ContextInfo info;
        info.method = "layer-defensive";
        info.explanation = "parts\n";
        info.budget = "30%";
        info.kv_type = type;
        info.sources = {{"book \xE6\x9D\xB1.txt", 1234, "0123456789abcdef"}};
        save_context(path, model, context.cache, tokens, info);
        return read_file(path);
    }
    std::vector<int> answer(const ReadContext& context, std::vector<float>* logits = nullptr) {
        TokenSession session(decoder, context.cache, model.parameters().context_length, {});
        std::vector<int> said;
        const auto first = session.read(std::vector<int>{7, 30, 100});
        if (logits != nullptr) logits->assign(first.begin(), first.end());
        session.answer(first, 40, [&](int token) {
            said.push_back(token);
            return true;
        });
        return said;
    }
    std::string refusal(const std::string& content) {
        write_file(path, content);
        try {
            ContextFile(path).context(model);
            return "";
        } catch (const Error& error) {
            return error.what();
        }
    }

    GgufModel model;
    Compute compute;
    DecoderGraph decoder;
    std::vector<int> tokens;
    const std::string path = testing::temporary_path("context.hfkv");
};

// Breaks if an entry, a position or a number is lost on the way, or a session writes into the file.
TEST_F(ContextFiles, WhatIsSavedIsLoaded) {
    for (const char* method : {"layer-defensive", "snapkv", "streaming", "full"}) {
        const ReadContext before = read(method, "30%");
        const std::string content = save(before);
        const ContextFile file(path);
        EXPECT_EQ(file.info().tokens, 333u);
        EXPECT_EQ(file.info().fingerprint, model.fingerprint());
        EXPECT_EQ(file.info().budget, "30%");
        ASSERT_EQ(file.info().sources.size(), 1u);
        EXPECT_EQ(file.info().sources[0].name, "book \xE6\x9D\xB1.txt");
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), file.tokens().begin(), file.tokens().end()));
        const ReadContext after = file.context(model);
        EXPECT_EQ(after.cache.next_position(), 333u);
        EXPECT_EQ(after.cache.bytes(), before.cache.bytes());
        EXPECT_EQ(after.report.kept_mean, before.report.kept_mean);
        for (int l = 0; l < 3; ++l)
            for (int h = 0; h < 2; ++h)
                EXPECT_TRUE(std::ranges::equal(after.cache.positions(l, h), before.cache.positions(l, h)));
        const std::vector<int> expected = answer(before);
        EXPECT_EQ(answer(after), expected) << method;
        EXPECT_EQ(answer(after), expected) << "and once more on the same context";
        // Evicting more copies, too.
        RaggedCache less(after.cache);
        less.retain(1, 1, std::vector<std::uint32_t>{0, 3, 20});
        EXPECT_EQ(answer(after), expected);
        EXPECT_EQ(read_file(path), content);
    }
    EXPECT_EQ(leftovers(path), 0);
}

// Breaks if a context can't outlive its file object, or the file on disk.
TEST_F(ContextFiles, MappingOutlivesTheFile) {
    const ReadContext before = read();
    save(before);
    auto file = std::make_unique<ContextFile>(path);
    const ReadContext after = file->context(model);
    file.reset();
    std::filesystem::remove(path);
    EXPECT_EQ(answer(after), answer(before));
}

// Breaks if q8_0 keeps other entries, takes more than 55%, or moves the logits by more than 8-bit rounding
// does.
TEST_F(ContextFiles, EightBitsAreHalfTheSize) {
    // As large as real ones, so that headers don't count.
    for (int i = 0; i < 3000; ++i) tokens.push_back(int((unsigned(i) * 7919u) % 320u));
    const ReadContext before = read();
    const std::size_t whole = save(before).size(), half = save(before, KvType::q8_0).size();
    const std::size_t same = tokens.size() * 4 + 4096 * 6;  // token ids, header, padding
    EXPECT_LE(double(half - same), 0.56 * double(whole - same));
    const ReadContext after = ContextFile(path).context(model);
    for (int l = 0; l < 3; ++l)
        for (int h = 0; h < 2; ++h)
            EXPECT_TRUE(std::ranges::equal(after.cache.positions(l, h), before.cache.positions(l, h)));
    std::vector<float> exact, rounded;
    answer(before, &exact);
    answer(after, &rounded);
    const double divergence = kl_divergence(exact, rounded);
    RecordProperty("kl_divergence", std::to_string(divergence));
    EXPECT_LT(divergence, 1e-3);
    EXPECT_GT(divergence, 0);
}

// Breaks if 8 bits a number change what the default model answers about a real document.
TEST(EightBits, AnswerTheSameOnTheDefaultModel) {
    if (testing::sanitized) GTEST_SKIP() << "reading the document takes minutes";
    const std::string text = read_file(HOLDFAST_SOURCE_DIR "/examples/saltmere.txt");
    ASSERT_FALSE(text.empty());
    const GgufModel model(default_model_path());
    const Tokenizer tokenizer(default_model_path());
    Compute compute(2);
    DecoderGraph decoder(model, compute);
    ReadSettings settings;
    settings.method = Method::parse("layer-defensive");
    settings.budget = Budget::parse("20%");
    const std::vector<int> tokens = tokenizer.prompt(text, "").context;
    const ReadContext read = read_context(model, compute, tokens, settings);
    std::vector<ReadContext> contexts;
    for (const KvType type : {KvType::f16, KvType::q8_0}) {
        const std::string path = testing::temporary_path(kv_type_name(type));
        ContextInfo info;
        info.kv_type = type;
        save_context(path, model, read.cache, tokens, info);
        contexts.push_back(ContextFile(path).context(model));
    }
    double worst = 0;
    const std::pair<const char*, const char*> needles[] = {
        {"What is the oldest boat in the harbour called?", "Patient Margaret"},
        {"Who is the director of the rope works?", "Helena Marsh"},
        {"In which room does the trust meet?", "upper room"}};
    for (const auto& [question, needle] : needles) {
        const Prompt prompt = tokenizer.prompt("", question);
        std::vector<int> rest = prompt.question;
        rest.insert(rest.end(), prompt.ending.begin(), prompt.ending.end());
        std::vector<float> logits[2];
        std::string answers[2];
        for (std::size_t i = 0; i < 2; ++i) {
            TokenSession session(decoder, contexts[i].cache, model.parameters().context_length, {});
            const auto first = session.read(rest);
            logits[i].assign(first.begin(), first.end());
            session.answer(first, 16, [&](int token) {
                answers[i] += tokenizer.piece(token);
                return !tokenizer.ends_answer(token);
            });
        }
        worst = std::max(worst, kl_divergence(logits[0], logits[1]));
        EXPECT_EQ(answers[1].find(needle) != std::string::npos, answers[0].find(needle) != std::string::npos)
            << answers[0] << "\n"
            << answers[1];
    }
    std::printf("KL divergence of q8_0 to f16: at most %.2g\n", worst);
    EXPECT_LT(worst, 0.01);
}

// Breaks if a damaged byte or a missing end goes unnoticed anywhere, crashes the reader, or isn't named by
// its section.
TEST_F(ContextFiles, DamageIsNoticedAndNamed) {
    const std::string content = save(read());
    std::vector<std::uint64_t> begins;
    for (int s = 0; s < 5; ++s) {
        std::uint64_t offset;
        std::memcpy(&offset, content.data() + 40 + s * 24, 8);
        begins.push_back(offset);
    }
    const char* names[] = {"description", "tokens", "lengths", "positions", "pages"};
    std::mt19937 random(3);
    for (std::size_t i = 0; i < content.size(); i += 1 + random() % 97) {
        std::string bad = content;
        bad[i] = char(bad[i] ^ (1 << random() % 8));
        const std::string message = refusal(bad);
        const auto section = std::upper_bound(begins.begin(), begins.end(), i) - begins.begin() - 1;
        const std::string name = i < 8 ? "no context file" : section < 0 ? "header" : names[section];
        EXPECT_NE(message.find(name), std::string::npos) << i << ": " << message;
    }
    for (std::size_t size :
         {std::size_t(0), std::size_t(5), std::size_t(8), std::size_t(4095), std::size_t(4096),
          std::size_t(begins[3] + 1), content.size() - 4096, content.size() - 1})
        EXPECT_NE(refusal(content.substr(0, size)), "") << size;
    EXPECT_NE(refusal(content + "x"), "");
    EXPECT_NE(refusal(content + content), "");
    EXPECT_EQ(refusal(content), "");
}

// What checksums don't tell: a file that was made to mislead.
class HostileFiles : public ContextFiles {
  protected:
    // content with bytes at an offset of a section (-1: the header) replaced, all checksums made right again.
    static std::string changed(std::string content, int section, std::size_t at, const std::string& bytes) {
        const auto entry = [&](int s, int field) { return content.data() + 40 + s * 24 + field * 8; };
        const auto number = [&](int s, int field) {
            std::uint64_t value;
            std::memcpy(&value, entry(s, field), 8);
            return value;
        };
        const std::size_t offset = section < 0 ? 0 : number(section, 0);
        content.replace(offset + at, bytes.size(), bytes);
        for (int s = 0; s < 5 && section >= 0; ++s) {
            const std::uint64_t padded = (number(s, 1) + 4095) / 4096 * 4096;
            const std::uint64_t sum = XXH3_64bits(content.data() + number(s, 0), padded);
            std::memcpy(entry(s, 2), &sum, 8);
        }
        const std::uint64_t sum = XXH3_64bits(content.data(), 4088);
        std::memcpy(content.data() + 4088, &sum, 8);
        return content;
    }
    static std::string number(std::uint64_t value, std::size_t bytes) {
        return {reinterpret_cast<const char*>(&value), bytes};
    }
    static std::string with_description(const std::string& content, const std::string& from,
                                        const std::string& to) {
        const std::size_t at = content.find(from);
        std::string text = to;
        text.resize(std::max(from.size(), to.size()), ' ');
        EXPECT_EQ(text.size(), from.size());
        return changed(content, 0, at - 4096, text);
    }
};

// Breaks if huge counts, overlapping sections, positions out of order or tokens of no vocabulary are
// believed.
TEST_F(HostileFiles, AreRefused) {
    const std::string content = save(read());
    EXPECT_EQ(refusal(changed(content, 0, 0, "{")), "");  // the helper itself changes nothing
    EXPECT_NE(refusal(changed(content, -1, 8, number(3, 4))).find("version 3"), std::string::npos);
    for (int section = 0; section < 5; ++section)
        for (const std::uint64_t value : {std::uint64_t(0), std::uint64_t(4096), ~std::uint64_t(0),
                                          ~std::uint64_t(0) - 4094, std::uint64_t(1) << 40})
            for (int field = 0; field < 2; ++field) {
                const std::string bad = changed(
                    content, -1, 40 + std::size_t(section) * 24 + std::size_t(field) * 8, number(value, 8));
                if (bad == content) continue;
                EXPECT_NE(refusal(bad), "") << section << " " << field << " " << value;
            }
    EXPECT_NE(refusal(changed(content, 2, 0, number(0xffffffff, 4))).find("lengths"), std::string::npos);
    EXPECT_NE(refusal(changed(content, 2, 0, number(332, 4))).find("positions"), std::string::npos);
    EXPECT_NE(refusal(changed(content, 3, 4, number(0, 4))).find("order"), std::string::npos);
    EXPECT_NE(refusal(changed(content, 3, 0, number(333, 4))).find("order"), std::string::npos);
    EXPECT_NE(refusal(changed(content, 1, 0, number(320, 4))).find("doesn't fit"), std::string::npos);
    EXPECT_NE(refusal(changed(content, 1, 0, number(0xffffffff, 4))).find("doesn't fit"), std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"layers\": 3", "\"layers\": 0")).find("impossible"),
              std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"layers\": 3", "\"layers\": 4")).find("lengths"),
              std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"tokens\": 333", "\"tokens\": 334")).find("tokens"),
              std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"tokens\": 333", "\"tokens\": -33")).find("tokens"),
              std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"head_dim\": 16", "\"head_dim\": 32")).find("pages"),
              std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"kv_type\": \"f16\"", "\"kv_type\": \"f61\""))
                  .find("description"),
              std::string::npos);
    EXPECT_NE(refusal(with_description(content, "\"method\"", "\"mathod\"")).find("description"),
              std::string::npos);
    EXPECT_NE(refusal(changed(content, 0, 0, "[[[[[[")).find("description"), std::string::npos);
}

// Breaks if a context is used with a model that it wasn't read with.
TEST_F(ContextFiles, AreOfOneModel) {
    save(read());
    const GgufModel other(model_path(2));
    EXPECT_THROW(ContextFile(path).context(other), Error);
    ModelOptions options;
    options.context_length = 1000;
    EXPECT_THROW(ContextFile(path).context(GgufModel(model_path(1), options)), Error);
}

// Breaks if a kill in the middle of a save leaves anything but the old or the new file, or a disk that is
// full costs the old one.
TEST_F(ContextFiles, AreWrittenWholeOrNotAtAll) {
    const ReadContext first = read("snapkv", "30%"), second = read("snapkv", "60%");
    const std::string one = save(first), two = save(second);
    std::mt19937 random(1);
    for (int kill_at = 0; kill_at < 100; ++kill_at) {
        const pid_t child = fork();
        if (child == 0) {
            for (int i = 0;; ++i) save(i % 2 == 0 ? first : second);
        }
        usleep(useconds_t(random() % 6000));
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        const std::string content = read_file(path);
        ASSERT_TRUE(content == one || content == two) << kill_at;
    }
    save(first);  // and what they left behind is gone
    EXPECT_EQ(leftovers(path), 0);
    const std::string before = read_file(path);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{20000, 20000};
        setrlimit(RLIMIT_FSIZE, &limit);
        try {
            save(second);
            _exit(0);
        } catch (const Error& error) {
            const bool named = std::string(error.what()).find(path) != std::string::npos;
            _exit(named && leftovers(path) == 0 ? 42 : 1);
        }
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 42);
    EXPECT_EQ(read_file(path), before);
}

}  // namespace
}  // namespace holdfast
