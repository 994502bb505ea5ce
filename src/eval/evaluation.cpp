#include "eval/evaluation.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "holdfast/error.hpp"
#include "base/hash.hpp"
#include "engine/session.hpp"
#include "text/utf8.hpp"

namespace holdfast {

namespace {

// Of the first line that isn't empty; npos if it goes on.
std::size_t end_of_first_line(const std::string& text) {
    return text.find('\n', std::min(text.find_first_not_of('\n'), text.size()));
}

}  // namespace

std::size_t cut_middle(std::vector<int>& tokens, std::size_t context, std::size_t behind, std::size_t room) {
    if (context + behind <= room || behind >= room) return 0;
    const std::size_t cut = context + behind - room;
    const auto middle = tokens.begin() + std::ptrdiff_t(std::min(room - room / 2, context - cut));
    tokens.erase(middle, middle + std::ptrdiff_t(cut));
    return cut;
}

Evaluation::Tokens Evaluation::tokens_of(const Sample& sample) const {
    Tokens tokens;
    tokens.chat = sample.chat_template && tokenizer_.has_chat_template();
    Prompt prompt = tokenizer_.exact_prompt(sample.context, sample.question, tokens.chat);
    tokens.context = std::move(prompt.context);
    const std::vector<int> prefix = tokenizer_.tokenize(sample.answer_prefix, true);
    std::vector<int>& question = settings_.question_aware ? tokens.context : tokens.rest;
    const std::size_t context_only = tokens.context.size();
    question.insert(question.end(), prompt.question.begin(), prompt.question.end());
    tokens.rest.insert(tokens.rest.end(), prompt.ending.begin(), prompt.ending.end());
    tokens.rest.insert(tokens.rest.end(), prefix.begin(), prefix.end());
    if (tokens.rest.empty() && tokens.context.size() > context_only) {  // an answer starts from a token
        tokens.rest.push_back(tokens.context.back());
        tokens.context.pop_back();
    }

    if (sample.cut_middle) {
        const std::size_t all = tokens.context.size() + tokens.rest.size(),
                          length = model_.parameters().context_length,
                          room = length - std::min(length, std::size_t(sample.most_tokens));
        tokens.cut = cut_middle(tokens.context, context_only, all - context_only, room);
    }
    return tokens;
}

std::string Evaluation::hash_of(const Sample& sample, const Tokens& tokens) {
    Hash hash;
    const auto add_text = [&](const std::string& text) { hash.add(text.c_str(), text.size() + 1); };
    for (const std::vector<int>* part : {&tokens.context, &tokens.rest}) {
        const std::size_t count = part->size();
        hash.add(&count, sizeof count);
        hash.add(part->data(), count * sizeof(int));
    }
    const int how[] = {sample.most_tokens, int(sample.metric), int(sample.first_line)};
    hash.add(how, sizeof how);
    for (const std::string& answer : sample.answers) add_text(answer);
    for (const std::string& name : sample.classes) add_text(name);
    return hash.hex();
}

std::size_t Evaluation::prompt_tokens(const Sample& sample) const {
    const Tokens tokens = tokens_of(sample);
    return tokens.context.size() + tokens.rest.size();
}

std::string Evaluation::check(const Sample& sample) const {
    const Tokens tokens = tokens_of(sample);
    const std::size_t all = tokens.context.size() + tokens.rest.size() + std::size_t(sample.most_tokens);
    if (all > model_.parameters().context_length)
        throw Error(sample.id + ": the prompt and its longest answer take " + std::to_string(all) +
                    " tokens, and the model reads " + std::to_string(model_.parameters().context_length));
    if (tokens.rest.empty()) throw Error(sample.id + ": nothing stands behind the context to answer");
    try {
        score(sample.metric, "", sample.answers, sample.classes);
    } catch (const Error& error) {
        throw Error(sample.id + ": " + error.what());
    }
    return hash_of(sample, tokens);
}

void Evaluation::run(const Sample& sample, const std::vector<CompressionRequest>& requests,
                     const std::function<void(SampleResult)>& on_result,
                     const std::function<void(const ReadProgress&)>& progress) {
    const Tokens tokens = tokens_of(sample);
    const std::string hash = hash_of(sample, tokens);
    const std::vector<ReadContext> contexts =
        read_contexts(model_, compute_, tokens.context, requests, progress);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const ReadContext& context = contexts[i];
        SampleResult result;
        result.task = sample.task;
        result.sample = sample.name();
        result.prompt = hash;
        result.method = requests[i].method.name();
        result.budget = requests[i].budget.name();
        result.question_aware = settings_.question_aware;
        result.chat_template = tokens.chat;
        result.tokens = context.report.tokens;
        result.cut_tokens = std::uint32_t(tokens.cut);
        result.kept_mean = context.report.kept_mean;
        for (int l = 0; l < context.cache.layers(); ++l) {
            result.kept_by_layer.push_back(0);
            for (int h = 0; h < context.cache.kv_heads(); ++h)
                result.kept_by_layer.back() += context.cache.length(l, h);
        }
        result.prefill_seconds = context.report.prefill_seconds;
        result.compression_seconds = context.report.compression_seconds;
        result.cache_bytes = context.report.kv_bytes;
        const Stopwatch watch;
        TokenSession session(decoder_, context.cache, model_.parameters().context_length, {});
        const std::span<const float> logits = session.read(tokens.rest);
        result.question_seconds = watch.seconds();
        Utf8Stream stream;
        session.answer(logits, sample.most_tokens, [&](int token) {
            if (tokenizer_.ends_answer(token)) return false;
            ++result.answer_tokens;
            result.answer += stream.push(tokenizer_.piece(token));
            return !(sample.first_line && end_of_first_line(result.answer) != std::string::npos);
        });
        result.answer += stream.finish();
        if (sample.first_line) {
            result.answer.resize(std::min(result.answer.size(), end_of_first_line(result.answer)));
            result.answer.erase(0, result.answer.find_first_not_of('\n'));
        }
        result.answer_seconds = watch.seconds() - result.question_seconds;
        result.metric = metric_name(sample.metric);
        result.answers = sample.answers;
        result.score = score(sample.metric, result.answer, sample.answers, sample.classes);
        on_result(std::move(result));
    }
}

}  // namespace holdfast
