// holdfast as a library: read a document once, compress its KV cache, ask it many times.
//
//   holdfast::Model model("model.gguf");
//   holdfast::Context book = model.compress(text, holdfast::Method::parse("layer-defensive"),
//                                           holdfast::Budget::parse("20%"));
//   book.save("book.hfkv");
//   std::string answer = book.session().ask("Who keeps the lighthouse?").text;
//
// Errors: every function may throw holdfast::Error, which says what was wrong and what to do about it, and
// std::bad_alloc. After an error objects are as they were before the call, but for a Session, whose answer
// ends there.
// Threads: Model and Context can be used by any number of threads at once. A Session belongs to one thread at
// a time; different sessions, of one context too, run in different threads, with the same answers as one
// after another.
// Positions and token counts are in tokens, sizes in bytes. Text is UTF-8; what isn't is read as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/budget.hpp"
#include "holdfast/error.hpp"
#include "holdfast/export.h"
#include "holdfast/method.hpp"
#include "holdfast/options.hpp"

namespace holdfast {

class Context;
class Session;

struct CompressOptions {
    // Called after each chunk of each layer, by the calling thread; false stops: Error (interrupted).
    std::function<bool(const ReadProgress&)> progress = {};
    // Not empty: the compression sees this question (question-aware), which ask() then expects first.
    std::string question = {};
    // What the document was put together from: kept in context files.
    std::vector<SourceFile> sources = {};
};

struct SessionOptions {
    Sampling sampling = {};
    // 0: the model's threads, which sessions take turns with, one token at a time. Otherwise threads of the
    // session's own, so that sessions run beside one another; more threads in all than processors are slow.
    int threads = 0;
};

struct Answer {
    std::string text;
    int tokens = 0;               // said, one that ended the answer among them
    double question_seconds = 0;  // of reading the question
    double answer_seconds = 0;    // from there to the end
};

// A GGUF model with its vocabulary and threads. Copies share it; contexts and sessions keep it alive.
class HOLDFAST_API Model {
  public:
    // path: a GGUF file, whose weights are mapped. threads: 0 takes all processors. cancelled: asked often,
    // by whichever thread computes; once it is true, what runs ends with Error (interrupted).
    explicit Model(const std::string& path, const ModelOptions& options = {}, int threads = 0,
                   std::function<bool()> cancelled = {});

    const std::string& name() const;  // its own, from the file
    const std::string& path() const;
    const std::string& fingerprint() const;  // 16 hex digits that tell models apart
    std::uint32_t context_length() const;
    int layers() const;
    int kv_heads() const;
    int head_dim() const;
    int threads() const;
    bool has_chat_template() const;  // without one, documents and questions are read as plain text

    // Plain text; what looks like a control token is read as characters.
    std::vector<int> tokenize(std::string_view text) const;
    // Invalid UTF-8 becomes U+FFFD. Throws Error (usage) for a number that is no token.
    std::string text(std::span<const int> tokens) const;

    // Reads a document as the start of a user's turn and keeps `budget` of its cache; never more than that
    // and one layer exists. An empty document gives a context to talk on without one, which is kept whole.
    // Throws Error if the document exceeds the context length, or memory doesn't suffice (before any work).
    Context compress(const std::string& document, const Method& method = Method::parse("layer-defensive"),
                     const Budget& budget = {0.2, true}, const CompressOptions& options = {}) const;
    // A context of Context::save(): of this model, opened with the same options. f16 pages stay in the mapped
    // file, which must not be written to meanwhile (Context::save() replaces files, it doesn't write to
    // them).
    Context load(const std::string& path) const;

  private:
    friend class Context;
    friend class Session;
    struct State;
    explicit Model(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

// A document that was read and compressed. It doesn't change; copies share it.
class HOLDFAST_API Context {
  public:
    Model model() const;
    const ContextInfo& info() const;   // method, budget, sources, shape
    const ReadReport& report() const;  // of the reading; without its times if it was loaded
    std::uint32_t tokens() const;      // that were read
    std::span<const int> ids() const;  // of these tokens
    std::size_t bytes() const;         // of the kept keys and values
    // Positions of the tokens that a head kept, rising; valid while the context lives. layer in [0, layers),
    // kv_head in [0, kv_heads); throws Error (usage) for others.
    std::span<const std::uint32_t> kept(int layer, int kv_head) const;

    // Writes a context file, whole or not at all (docs/context-file.md).
    void save(const std::string& path, KvType type = KvType::f16) const;
    // Compresses once more: entries stay where they were read, and what is gone stays gone. Throws Error
    // (usage) for a method that must see the whole context's queries (docs/recompression.md).
    Context compressed(const Method& method, const Budget& budget) const;
    // Begins a line of questions. It shares the context's memory, and what it adds is its own.
    Session session(const SessionOptions& options = {}) const;

  private:
    friend class Model;
    friend class Session;
    struct State;
    explicit Context(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

// A conversation on a context: each question follows the answers before.
class HOLDFAST_API Session {
  public:
    Session(Session&&) noexcept;
    Session& operator=(Session&&) noexcept;
    ~Session();

    // At most most_tokens tokens. on_text gets the answer's text as it comes, whole characters; false ends
    // it.
    Answer ask(const std::string& question, int most_tokens = 256,
               const std::function<bool(std::string_view text)>& on_text = {});

    // The same in steps: begin() reads the question; each next() gives the next piece of the answer, which
    // may be empty in the middle of a character, and is false when the answer is over.
    void begin(const std::string& question);
    bool next(std::string& text);
    // Ends the answer where it is; returns what was held back of an unfinished character, as U+FFFD, or
    // nothing.
    std::string end();

    // From now on the cache stays within the budget, but for one page (32 tokens) a head: what is beyond it
    // is compressed at once, and what is added as it comes. Heads keep their window and 32 tokens more on
    // average in any case. Budget::everything() lifts the limit. Throws Error (usage) as
    // Context::compressed() does.
    void limit(const Method& method, const Budget& budget);

    std::uint32_t tokens() const;  // read and said so far, the context's among them; an answer's last one is
                                   // read with what follows
    std::size_t bytes() const;     // of keys and values, the context's among them
    double kept_mean() const;      // entries of a KV head, sliding layers aside
    std::string note() const;      // where the limit couldn't be applied as written; otherwise empty

    // Ends the answer, and gives all of it as a context: to be saved, or asked by sessions that part here.
    Context context();

  private:
    friend class Context;
    struct State;
    explicit Session(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// What a context file says of itself, the path of its model among it; throws Error for what isn't one or is
// damaged, keys and values aside: load() looks at these.
HOLDFAST_API ContextInfo read_context_info(const std::string& path);

// The model that holdfast's set-up fetches.
HOLDFAST_API std::string default_model_path();
// Of the library: "1.2.3".
HOLDFAST_API const char* version();

}  // namespace holdfast
