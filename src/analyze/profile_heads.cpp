#include "analyze/profile_heads.hpp"

#include <numeric>
#include <random>

#include "analyze/answer_trace.hpp"
#include "holdfast/error.hpp"
#include "engine/context.hpp"

namespace holdfast {

namespace {

constexpr int least_prompts_answered = 5;
constexpr int longest_answer = 40;

// Text without numbers, in which a number is found by looking for it alone.
constexpr const char* filler[] = {
    "The baker opens the shutters before the street is awake. ",
    "Rain had washed the steps, and nobody was in a hurry. ",
    "A cart with apples stood at the corner of the square. ",
    "The teacher wrote the names of the rivers on the board. ",
    "Behind the mill the path follows the water for a while. ",
    "Every evening the lamps along the quay are lit by hand. ",
    "The tailor kept his best cloth on the highest shelf. ",
    "In winter the lake freezes and the children skate on it. ",
    "The old clock in the hall is always a little slow. ",
    "Two dogs slept in the shade of the wall all afternoon. ",
    "The gardener prefers roses that smell to roses that last. ",
    "A letter lay on the table, and its seal was not broken. ",
};
constexpr const char* places[] = {"lighthouse", "library", "theatre", "station", "museum", "bakery"};

struct NeedlePrompt {
    std::string document, question, number;
};

NeedlePrompt make_prompt(const Tokenizer& tokenizer, std::mt19937_64& random, std::uint32_t tokens,
                         double depth) {
    const auto pick = [&](const auto& list) { return list[random() % std::size(list)]; };
    NeedlePrompt prompt;
    for (int i = 0; i < 7; ++i) prompt.number += char('0' + (i == 0 ? 1 + random() % 9 : random() % 10));
    const std::string place = pick(places);
    prompt.question = "What is the special magic number of the " + place + "?";
    std::vector<std::string> sentences;
    for (std::size_t length = 0; length < tokens;) {
        sentences.emplace_back(pick(filler));
        length += tokenizer.tokenize(sentences.back()).size();
    }
    const auto at = std::size_t(depth * double(sentences.size()));
    for (std::size_t i = 0; i <= sentences.size(); ++i) {
        if (i == at)
            prompt.document += "The special magic number of the " + place + " is " + prompt.number + ". ";
        if (i < sentences.size()) prompt.document += sentences[i];
    }
    return prompt;
}

// Indices of the tokens that the last occurrence of `text` is made of; none if it doesn't occur.
std::vector<std::size_t> tokens_of(const Tokenizer& tokenizer, std::span<const int> tokens,
                                   const std::string& text) {
    std::string all;
    std::vector<std::size_t> ends;
    for (int token : tokens) {
        all += tokenizer.piece(token);
        ends.push_back(all.size());
    }
    std::vector<std::size_t> found;
    const std::size_t begin = all.rfind(text);
    if (begin == std::string::npos) return found;
    for (std::size_t i = 0; i < ends.size(); ++i)
        if (ends[i] > begin && (i == 0 ? 0 : ends[i - 1]) < begin + text.size()) found.push_back(i);
    return found;
}

}  // namespace

HeadProfile profile_heads(const GgufModel& model, const Tokenizer& tokenizer, Compute& compute,
                          const ProfileSettings& settings,
                          const std::function<void(const ProfileProgress&)>& progress) {
    const HyperParameters& p = model.parameters();
    const std::uint32_t most =
        std::min(settings.longest, p.context_length - std::min(p.context_length, 256u));
    if (most < settings.shortest)
        throw Error("the model reads " + std::to_string(p.context_length) +
                    " tokens, too few for prompts that tell heads apart");
    HeadProfile profile{model.fingerprint(), p.name, p.layers, p.kv_heads, 0, {}};
    profile.importance.resize(std::size_t(p.layers) * std::size_t(p.kv_heads));
    std::mt19937_64 random(settings.seed);
    DecoderGraph decoder(model, compute);
    for (int i = 0; i < settings.prompts; ++i) {
        // Length grows, while depth goes through its range again and again.
        const double depth = (i % 10 + 0.5) / 10;
        const auto length = std::uint32_t(settings.shortest +
                                          (most - settings.shortest) * (double(i) + 0.5) / settings.prompts);
        const NeedlePrompt needle = make_prompt(tokenizer, random, length, depth);
        const Prompt prompt = tokenizer.prompt(needle.document, needle.question);
        const ReadContext context = read_context(model, compute, prompt.context, {});
        std::vector<int> question = prompt.question;
        question.insert(question.end(), prompt.ending.begin(), prompt.ending.end());
        AnswerTrace trace(model, decoder, context.cache, question,
                          [&](int token) { return tokenizer.ends_answer(token); });
        trace.advance(longest_answer);
        const std::vector<std::size_t> steps = tokens_of(tokenizer, trace.tokens(), needle.number);
        const std::vector<std::size_t> targets = tokens_of(tokenizer, prompt.context, needle.number);
        if (!steps.empty() && !targets.empty()) {
            ++profile.prompts;
            compute.parallel(p.layers * p.kv_heads, [&](int head, int) {
                if (p.slides(head / p.kv_heads)) return;  // it sees its window alone
                for (std::size_t step : steps) {
                    const std::vector<float> weights =
                        attention_weights(model, trace, step, head / p.kv_heads, head % p.kv_heads);
                    const std::size_t slots = weights.size() / std::size_t(p.group());
                    for (int g = 0; g < p.group(); ++g)
                        for (std::size_t target : targets)
                            profile.importance[std::size_t(head)] +=
                                double(weights[std::size_t(g) * slots + target]) / double(steps.size());
                }
            });
        }
        if (progress) progress({i + 1, settings.prompts, profile.prompts});
    }
    if (profile.prompts < least_prompts_answered)
        throw Error("the model answered " + std::to_string(profile.prompts) + " of " +
                    std::to_string(settings.prompts) +
                    " needle prompts right with the full cache; at least " +
                    std::to_string(least_prompts_answered) +
                    " are needed for a profile: use a better model, or shorter prompts with --longest");
    const double sum = std::accumulate(profile.importance.begin(), profile.importance.end(), 0.0);
    for (double& share : profile.importance) share /= sum;
    return profile;
}

}  // namespace holdfast
