#include "eval/evaluation.hpp"

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"
#include "engine/session.hpp"
#include "text/utf8.hpp"

namespace holdfast {

Evaluation::Tokens Evaluation::tokens_of(const Sample& sample) const {
    const Prompt prompt = tokenizer_.prompt(sample.context, sample.question);
    Tokens tokens{prompt.context, {}};
    std::vector<int>& question = settings_.question_aware ? tokens.context : tokens.rest;
    question.insert(question.end(), prompt.question.begin(), prompt.question.end());
    tokens.rest.insert(tokens.rest.end(), prompt.ending.begin(), prompt.ending.end());
    const std::vector<int> prefix = tokenizer_.tokenize(sample.answer_prefix, true);
    tokens.rest.insert(tokens.rest.end(), prefix.begin(), prefix.end());
    return tokens;
}

std::string Evaluation::Tokens::hash() const {
    Hash hash;
    for (const std::vector<int>* part : {&context, &rest}) {
        const std::size_t count = part->size();
        hash.add(&count, sizeof count);
        hash.add(part->data(), count * sizeof(int));
    }
    return hash.hex();
}

std::string Evaluation::prompt_hash(const Sample& sample) const {
    return tokens_of(sample).hash();
}

std::size_t Evaluation::prompt_tokens(const Sample& sample) const {
    const Tokens tokens = tokens_of(sample);
    return tokens.context.size() + tokens.rest.size();
}

void Evaluation::check(const Sample& sample) const {
    const std::size_t all = prompt_tokens(sample) + std::size_t(sample.most_tokens);
    if (all > model_.parameters().context_length)
        throw Error(sample.id + ": the prompt and its longest answer take " + std::to_string(all) +
                    " tokens, and the model reads " + std::to_string(model_.parameters().context_length));
}

std::vector<SampleResult> Evaluation::run(const Sample& sample, const std::vector<Contestant>& contestants,
                                          const std::function<void(const ReadProgress&)>& progress) {
    const Tokens tokens = tokens_of(sample);
    const std::string hash = tokens.hash();
    std::vector<CompressionRequest> requests;
    for (const Contestant& contestant : contestants) requests.push_back(contestant.request);
    const std::vector<Context> contexts =
        read_contexts(model_, compute_, tokens.context, requests, 512, progress);
    std::vector<SampleResult> results;
    for (std::size_t i = 0; i < contestants.size(); ++i) {
        const Context& context = contexts[i];
        SampleResult result;
        result.prompt = hash;
        result.task = sample.task;
        result.method = contestants[i].method;
        result.budget = contestants[i].budget;
        result.tokens = context.report.tokens;
        result.kept_mean = context.report.kept_mean;
        for (int l = 0; l < context.cache.layers(); ++l) {
            result.kept.push_back(0);
            for (int h = 0; h < context.cache.kv_heads(); ++h)
                result.kept.back() += context.cache.length(l, h);
        }
        result.prefill_seconds = context.report.prefill_seconds;
        result.compression_seconds = context.report.compression_seconds;
        const Stopwatch watch;
        Session session(decoder_, context.cache, model_.parameters().context_length, {});
        Utf8Stream stream;
        session.answer(session.read(tokens.rest), sample.most_tokens, [&](int token) {
            if (tokenizer_.ends_answer(token)) return false;
            ++result.answer_tokens;
            result.answer += stream.push(tokenizer_.piece(token));
            return true;
        });
        result.answer += stream.finish();
        result.answer_seconds = watch.seconds();
        result.score = score(sample.metric, result.answer, sample.answers, sample.classes);
        results.push_back(std::move(result));
    }
    return results;
}

}  // namespace holdfast
