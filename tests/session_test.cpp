// The library as its users meet it: conversations, saving them, compressing them again, many at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

#include "engine/context.hpp"
#include "engine/recompressor.hpp"
#include "holdfast/holdfast.hpp"
#include "llama.h"
#include "model_files.hpp"
#include "text/tokenizer.hpp"

namespace holdfast {
namespace {

constexpr const char* document =
    "The harbour of Saltmere has one lighthouse. The name of its keeper is Ottoline Finch, and her dog is "
    "called "
    "Brass. The light is white and turns every twelve seconds. The oldest boat in the harbour is the Patient "
    "Margaret. She carried slate until the railway came, and now she carries visitors in the summer.\n";
constexpr const char* question = "What is the name of the lighthouse keeper?";

#ifdef __SANITIZE_THREAD__
constexpr int model_threads =
    1;  // ggml isn't built with the sanitizer, which doesn't see how its threads meet
#else
constexpr int model_threads = 2;
#endif

const Model& model() {
    static const Model one(default_model_path(), {}, model_threads);
    return one;
}

Budget tokens_a_head(int tokens) {
    return {double(tokens), false};
}

double kept_mean(const Context& context) {
    const Model model = context.model();
    std::size_t entries = 0;
    for (int l = 0; l < model.layers(); ++l)
        for (int h = 0; h < model.kv_heads(); ++h) entries += context.kept(l, h).size();
    return double(entries) / (model.layers() * model.kv_heads());
}

// Breaks if the two ways to an answer differ, a piece is lost or cut within a character, or what on_text says
// is ignored.
TEST(Sessions, AskIsBeginAndNext) {
    const Context context = model().compress(document, Method::full());
    std::string pieces;
    const Answer answer = context.session().ask(question, 24, [&](std::string_view text) {
        pieces += text;
        return true;
    });
    EXPECT_GT(answer.text.size(), 20u);
    EXPECT_EQ(pieces, answer.text);
    Session session = context.session();
    session.begin(question);
    std::string text, piece;
    for (int i = 0; i < answer.tokens && session.next(piece); ++i) text += piece;
    EXPECT_EQ(text, answer.text);
    int calls = 0;
    const Answer cut = context.session().ask(question, 24, [&](std::string_view) { return ++calls < 3; });
    EXPECT_EQ(calls, 3);
    EXPECT_TRUE(answer.text.starts_with(cut.text));
    EXPECT_LT(cut.text.size(), answer.text.size());
    EXPECT_FALSE(context.session().next(piece)) << "nothing was asked";
    SessionOptions sampled;
    sampled.sampling = {1.5f, 7};
    EXPECT_EQ(context.session(sampled).ask(question, 24).text,
              context.session(sampled).ask(question, 24).text);
    sampled.sampling.seed = 8;
    EXPECT_NE(context.session(sampled).ask(question, 24).text, answer.text);
}

// Breaks if a turn's tokens aren't those of the whole conversation in the model's own format, an answer's
// last token is lost, or the end of an answer is read twice.
TEST(Sessions, TurnsAreInTheModelsFormat) {
    const Context context = model().compress(document, Method::full());
    Session session = context.session();
    session.begin(question);
    const std::size_t asked = session.tokens();
    std::string first, piece;
    for (int i = 0; i < 300 && session.next(piece); ++i) first += piece;
    const std::string cut = session.ask("And the dog?", 3).text;
    session.begin("Thanks.");
    const Context all = session.context();

    llama_model_params parameters = llama_model_default_params();
    parameters.vocab_only = true;
    llama_model* vocabulary = llama_model_load_from_file(default_model_path().c_str(), parameters);
    const std::string turn = "<|im_end|>\n<|im_start|>user\n", answer = "<|im_end|>\n<|im_start|>assistant\n";
    const std::string expected = first + turn + "And the dog?" + answer + cut + turn + "Thanks." + answer;
    std::vector<int> tokens(expected.size());
    tokens.resize(
        std::size_t(llama_tokenize(llama_model_get_vocab(vocabulary), expected.data(), int(expected.size()),
                                   tokens.data(), int(tokens.size()), false, true)));
    llama_model_free(vocabulary);
    EXPECT_TRUE(std::ranges::equal(all.ids().subspan(asked), tokens)) << model().text(all.ids());
}

// Breaks if a conversation goes on otherwise after it was saved, or a context is changed by its sessions.
TEST(Sessions, SavedConversationsGoOn) {
    const std::string path = testing::temporary_path("conversation.hfkv");
    const Context context = model().compress(document, Method::full());
    Session session = context.session();
    session.ask(question, 5);
    const Context here = session.context();
    here.save(path);
    const std::string expected = session.ask("What is her dog called?", 20).text;
    EXPECT_EQ(here.session().ask("What is her dog called?", 20).text, expected);
    const Context loaded = model().load(path);
    EXPECT_TRUE(loaded.info().conversation);
    EXPECT_EQ(loaded.session().ask("What is her dog called?", 20).text, expected);
    EXPECT_EQ(read_context_info(path).tokens, here.tokens());
    EXPECT_EQ(context.session().ask(question, 5).text,
              here.model().compress(document, Method::full()).session().ask(question, 5).text);
}

// Breaks if a question-aware context reads its question twice, or another one without a line break.
TEST(Sessions, QuestionAwareContextsKnowTheirQuestion) {
    CompressOptions aware;
    aware.question = question;
    const Context context =
        model().compress(document, Method::parse("layer-defensive"), Budget::parse("60%"), aware);
    Session session = context.session();
    session.begin(question);
    const Context plain = model().compress(document, Method::full());
    Session whole = plain.session();
    whole.begin(question);
    EXPECT_EQ(session.tokens(), whole.tokens());
    const std::string path = testing::temporary_path("aware.hfkv");
    context.save(path);
    EXPECT_EQ(model().load(path).session().ask(question, 8).text, context.session().ask(question, 8).text);
}

// Breaks if what a second compression keeps isn't what one from the beginning would have kept, where nothing
// is gone yet: with methods that look at the same queries, the scores are the same but for rounding.
TEST(Recompression, OfAFullContextIsTheFirstOne) {
    std::ifstream file(HOLDFAST_SOURCE_DIR "/examples/saltmere.txt");
    std::string text(std::istreambuf_iterator<char>(file), {});
    ASSERT_FALSE(text.empty());
    text.resize(testing::sanitized ? 1200 : 4000);
    const Context full = model().compress(text, Method::full());
    for (const char* name :
         {"layer-defensive", "critical-adakv", "snapkv", "tova", "knorm+ada", "streaming"}) {
        const Method method = Method::parse(name);
        const Context direct = model().compress(text, method, Budget::parse("30%"));
        const Context again = full.compressed(method, Budget::parse("30%"));
        std::size_t common = 0, all = 0;
        for (int l = 0; l < model().layers(); ++l)
            for (int h = 0; h < model().kv_heads(); ++h) {
                const auto a = direct.kept(l, h), b = again.kept(l, h);
                std::vector<std::uint32_t> both;
                std::ranges::set_intersection(a, b, std::back_inserter(both));
                common += both.size();
                all += std::max(a.size(), b.size());
            }
        EXPECT_GE(double(common), 0.98 * double(all)) << name;
        EXPECT_EQ(again.info().method, name);
    }
}

// Breaks if something comes back or moves in a second compression, the window isn't kept, or a head stays
// empty.
TEST(Recompression, OnlyDropsAndKeepsTheWindow) {
    const Context first = model().compress(document, Method::parse("layer-defensive"), Budget::parse("70%"));
    for (const char* name : {"layer-defensive", "critical-snapkv", "defensive", "snapkv+pyramid", "random"}) {
        const Context second = first.compressed(Method::parse(name, {"window=8"}), Budget::parse("40%"));
        EXPECT_EQ(second.tokens(), first.tokens());
        EXPECT_LE(kept_mean(second), 0.4 * first.tokens() + 0.5) << name;
        EXPECT_GE(kept_mean(second), 0.25 * first.tokens()) << name;
        for (int l = 0; l < model().layers(); ++l)
            for (int h = 0; h < model().kv_heads(); ++h) {
                const auto a = first.kept(l, h), b = second.kept(l, h);
                EXPECT_TRUE(std::ranges::includes(a, b));
                for (std::uint32_t i = 0; i < 8; ++i)
                    EXPECT_TRUE(std::ranges::binary_search(b, first.tokens() - 1 - i)) << name;
            }
    }
    for (const char* name : {"h2o", "expected-attention"})
        EXPECT_THROW(first.compressed(Method::parse(name), Budget::parse("40%")), Error) << name;
}

// Breaks if a limit is exceeded by more than one page a head at any time, the newest turn loses, or an older
// turn keeps more than a newer one does.
TEST(Recompression, ConversationsStayWithinTheirLimit) {
    const char* questions[] = {"What is a lighthouse?",   "Who invented the steam engine?",
                               "How do bees make honey?", "What is the capital of Norway?",
                               "Why is the sea salty?",   "What is granite?"};
    const Context context = model().compress("");
    Session session = context.session();
    constexpr int limit = 120;
    session.limit(Method::parse("layer-defensive"), tokens_a_head(limit));
    std::vector<std::uint32_t> begin;
    std::string text;
    for (const char* one : questions) {
        begin.push_back(session.tokens());
        session.begin(one);
        for (int i = 0; i < 48 && session.next(text); ++i)
            ASSERT_LE(session.kept_mean(), limit + 32.0) << session.tokens();
    }
    const Context all = session.context();
    begin.push_back(all.tokens());
    EXPECT_GT(all.tokens(), limit + 64u);
    std::vector<double> share;
    for (std::size_t turn = 0; turn < std::size(questions); ++turn) {
        std::size_t kept = 0;
        for (int l = 0; l < model().layers(); ++l)
            for (int h = 0; h < model().kv_heads(); ++h) {
                const auto positions = all.kept(l, h);
                kept += std::ranges::lower_bound(positions, begin[turn + 1]) -
                        std::ranges::lower_bound(positions, begin[turn]);
            }
        share.push_back(double(kept) / double(begin[turn + 1] - begin[turn]) /
                        (model().layers() * model().kv_heads()));
    }
    EXPECT_GT(share[5], 0.85);
    EXPECT_GT(share[5], share[4]);
    EXPECT_GT(share[4], 1.5 * (share[0] + share[1] + share[2] + share[3]) / 4);
    // Lifted, all that is added is kept.
    session.limit(Method::parse("layer-defensive"), Budget::everything());
    const double before = session.kept_mean();
    session.begin("Once more: what is granite?");
    EXPECT_NEAR(session.kept_mean(), before + session.tokens() - all.tokens(), 1e-6);
}

// Breaks if a budget that nothing can be chosen by empties short conversations.
TEST(Recompression, ShortConversationsKeepTheirBeginning) {
    Session session = model().compress("").session();
    session.limit(Method::parse("layer-defensive"), Budget::parse("10%"));
    session.ask("What is a lighthouse?", 100);
    const Context all = session.context();
    EXPECT_NE(session.note().find("64"), std::string::npos) << session.note();
    int first = 0;
    for (int l = 0; l < model().layers(); ++l)
        for (int h = 0; h < model().kv_heads(); ++h) first += all.kept(l, h).front() == 0;
    EXPECT_GT(first, model().layers() * model().kv_heads() / 2);
}

// Breaks if a question that is interrupted or too long leaves something of itself behind.
TEST(Sessions, RefusedQuestionsLeaveNothing) {
    bool stop = false;
    const Model stoppable(default_model_path(), {512, "", 0}, 2, [&] { return stop; });
    const Context context = stoppable.compress(document, Method::full());
    const std::string expected = context.session().ask(question, 12).text;
    Session session = context.session();
    std::string many;
    for (int i = 0; i < 300; ++i) many += "boat and ";
    EXPECT_THROW(session.begin(many), Error);
    EXPECT_EQ(session.tokens(), context.tokens());
    // A limit drops entries while a question is read: they come back with the rest.
    Session limited = context.session();
    limited.limit(Method::parse("layer-defensive", {"window=8"}), tokens_a_head(60));
    const double held = limited.kept_mean();
    int nodes = 0;
    const Model late(default_model_path(), {512, "", 0}, 2, [&] { return stop && ++nodes > 3000; });
    Session late_session = late.compress(document, Method::full()).session();
    late_session.limit(Method::parse("layer-defensive", {"window=8"}), tokens_a_head(60));
    const std::string bytes_before = std::to_string(late_session.kept_mean());
    stop = true;
    EXPECT_THROW(late_session.begin(many.substr(0, 1500)), Error);
    stop = false;
    EXPECT_EQ(std::to_string(late_session.kept_mean()), bytes_before);
    EXPECT_EQ(late_session.ask(question, 12).text, limited.ask(question, 12).text);
    EXPECT_EQ(std::to_string(held), bytes_before);
    stop = true;
    EXPECT_THROW(session.begin(question), Error);
    stop = false;
    EXPECT_EQ(session.tokens(), context.tokens());
    EXPECT_EQ(session.ask(question, 12).text, expected);
    EXPECT_THROW(stoppable.compress(many + many), Error);
    EXPECT_THROW(context.kept(0, 99), Error);
    EXPECT_THROW(static_cast<void>(stoppable.text(std::vector<int>{1 << 30})), Error);
    CompressOptions impatient;
    impatient.progress = [](const ReadProgress& progress) { return progress.layer < 3; };
    try {
        stoppable.compress(document, Method::full(), {}, impatient);
        ADD_FAILURE() << "went on";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, Error::Kind::interrupted);
    }
}

// Breaks if sessions of one context disturb one another: each answers as it does alone, whether they take
// turns with the model's threads or have their own. (Run with the thread sanitizer, too.)
TEST(Sessions, RunBesideOneAnother) {
    const Context context =
        model().compress(document, Method::parse("layer-defensive"), Budget::parse("70%"));
    const char* questions[] = {question, "What is the dog called?", "What does the Patient Margaret carry?",
                               "How often does the light turn?"};
    const auto talk = [&](int i, int threads) {
        SessionOptions how;
        how.threads = threads;
        Session session = context.session(how);
        if (i == 3) session.limit(Method::parse("snapkv", {"window=8"}), tokens_a_head(60));
        std::string said = session.ask(questions[i], 10).text;
        said += session.ask(questions[(i + 1) % 4], 6).text;
        return said + std::to_string(session.context().bytes());
    };
    std::vector<std::string> expected;
    for (int i = 0; i < 4; ++i) expected.push_back(talk(i, 1));
    for (int threads : {0, 1}) {
        std::vector<std::string> said(4);
        std::vector<std::thread> running;
        for (int i = 0; i < 4; ++i) running.emplace_back([&, i] { said[std::size_t(i)] = talk(i, threads); });
        for (std::thread& thread : running) thread.join();
        EXPECT_EQ(said, expected) << threads;
    }
}

}  // namespace
}  // namespace holdfast
