#include "eval/ruler.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "holdfast/error.hpp"

namespace holdfast {

namespace {

// Numbers that are the same with every standard library.
class Random {
  public:
    Random(std::uint64_t seed, const std::string& task, int index) : engine_(seed) {
        std::uint64_t mixed = engine_();
        for (char c : task) mixed = (mixed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
        engine_.seed(mixed + std::uint64_t(index) * 0x9e3779b97f4a7c15u);
    }
    std::size_t below(std::size_t limit) { return std::size_t(engine_() % limit); }
    template <class List>
    const auto& of(const List& list) {
        return list[below(std::size(list))];
    }
    template <class T>
    void shuffle(std::vector<T>& list) {
        for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
    }
    // `count` different numbers below limit, rising.
    std::vector<std::size_t> sample(std::size_t limit, std::size_t count) {
        std::vector<std::size_t> all(limit);
        std::iota(all.begin(), all.end(), std::size_t(0));
        for (std::size_t i = 0; i < count; ++i) std::swap(all[i], all[i + below(limit - i)]);
        all.resize(count);
        std::sort(all.begin(), all.end());
        return all;
    }
    std::string letters(std::size_t count, char first) {
        std::string text;
        for (std::size_t i = 0; i < count; ++i) text += char(first + int(below(26)));
        return text;
    }
    std::string digits(std::size_t count) {
        std::string text(1, char('1' + int(below(9))));
        while (text.size() < count) text += char('0' + int(below(10)));
        return text;
    }
    std::string uuid() {  // version 4
        std::string text;
        for (std::size_t i = 0; i < 32; ++i) {
            if (i == 8 || i == 12 || i == 16 || i == 20) text += '-';
            text += i == 12 ? '4' : "0123456789abcdef"[i == 16 ? 8 + below(4) : below(16)];
        }
        return text;
    }

  private:
    std::mt19937_64 engine_;
};

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
        text.replace(at, what.size(), by);
    return text;
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
    return text;
}

std::vector<std::string> words_between_spaces(const std::string& text) {
    std::vector<std::string> words;
    std::string word;
    for (char c : text + " ") {
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
            word += c;
        } else if (!word.empty()) {
            words.push_back(std::move(word));
            word.clear();
        }
    }
    return words;
}

// Split behind words that end in a full stop, question or exclamation mark.
std::vector<std::string> sentences_of(const std::vector<std::string>& words, std::size_t count) {
    std::vector<std::string> sentences(1);
    for (std::size_t i = 0; i < count; ++i) {
        const std::string& word = words[i % words.size()];
        sentences.back() += (sentences.back().empty() ? "" : " ") + word;
        const std::size_t last = word.find_last_not_of("\"')");
        if (last != std::string::npos && (word[last] == '.' || word[last] == '?' || word[last] == '!'))
            sentences.emplace_back();
    }
    if (sentences.back().empty()) sentences.pop_back();
    return sentences;
}

constexpr const char* noise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

enum class Haystack { noise, essay, needles };
enum class Kind { words, numbers, uuids };

struct NeedleTask {
    const char* name;
    Haystack haystack;
    Kind key, value;
    std::size_t keys, values, queries;
};

constexpr NeedleTask needle_tasks[] = {
    {"niah_single_1", Haystack::noise, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_single_2", Haystack::essay, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_single_3", Haystack::essay, Kind::words, Kind::uuids, 1, 1, 1},
    {"niah_multikey_1", Haystack::essay, Kind::words, Kind::numbers, 4, 1, 1},
    {"niah_multikey_2", Haystack::needles, Kind::words, Kind::numbers, 1, 1, 1},
    {"niah_multikey_3", Haystack::needles, Kind::uuids, Kind::uuids, 1, 1, 1},
    {"niah_multivalue", Haystack::essay, Kind::words, Kind::numbers, 1, 4, 1},
    {"niah_multiquery", Haystack::essay, Kind::words, Kind::numbers, 4, 1, 4},
};

const NeedleTask* find_needle_task(const std::string& name) {
    for (const NeedleTask& task : needle_tasks)
        if (name == task.name) return &task;
    return nullptr;
}

// A template's parts: what stands before {context}, and behind the line break that follows it.
struct Template {
    std::string before, behind, prefix;
};

void fill(Sample& sample, const Template& parts, const std::string& context) {
    sample.context = parts.before + context + "\n";
    sample.question = parts.behind;
    sample.answer_prefix = parts.prefix;
}

Sample needle_sample(const NeedleTask& task, Random random, std::size_t size,
                     const std::vector<std::string>& essay, const std::vector<std::string>& words) {
    std::set<std::string> used;  // no key or value twice, so that a distractor never is the answer
    const auto fresh = [&](Kind kind) {
        while (true) {
            std::string text = kind == Kind::numbers ? random.digits(7)
                               : kind == Kind::uuids ? random.uuid()
                                                     : random.of(words) + "-" + random.of(words);
            if (used.insert(text).second) return text;
        }
    };
    const std::string type = task.value == Kind::numbers ? "numbers" : "uuids";
    const auto needle = [&](const std::string& key, const std::string& value) {
        return std::string("One of the special magic ") + type + " for " + key + " is: " + value + ".";
    };
    std::vector<std::string> keys, needles;
    std::vector<std::vector<std::string>> values;
    for (std::size_t k = 0; k < task.keys; ++k) {
        keys.push_back(fresh(task.key));
        values.emplace_back();
        for (std::size_t v = 0; v < task.values; ++v) {
            values.back().push_back(fresh(task.value));
            needles.push_back(needle(keys.back(), values.back().back()));
        }
    }
    const std::vector<std::size_t> queried = random.sample(task.keys, task.queries);
    random.shuffle(needles);
    const std::vector<std::size_t> depths = random.sample(40, needles.size());  // of 40 from 0 to 100%

    std::string context;
    if (task.haystack == Haystack::essay) {
        const std::vector<std::string> sentences = sentences_of(essay, size);
        std::vector<std::string> parts;
        std::size_t next = 0;
        for (std::size_t s = 0; s <= sentences.size(); ++s) {
            const auto place = [&](std::size_t depth) {
                return std::size_t(double(sentences.size()) * std::nearbyint(double(depth) * 100 / 39) / 100);
            };
            while (next < needles.size() && place(depths[next]) <= s) parts.push_back(needles[next++]);
            if (s < sentences.size()) parts.push_back(sentences[s]);
        }
        context = joined(parts, " ");
    } else {
        std::vector<std::string> sentences;
        for (std::size_t i = 0; i < size; ++i)
            sentences.push_back(
                task.haystack == Haystack::noise ? noise : needle(fresh(task.key), fresh(task.value)));
        std::vector<std::size_t> places = random.sample(size, std::min(size, needles.size()));
        for (std::size_t i = places.size(); i-- > 0;)
            sentences.insert(sentences.begin() + std::ptrdiff_t(places[i]), needles[i]);
        context = joined(sentences, "\n");
    }

    Sample sample;
    std::vector<std::string> names;
    for (std::size_t i : queried) {
        names.push_back(keys[i]);
        sample.answers.insert(sample.answers.end(), values[i].begin(), values[i].end());
    }
    std::string query = names.front();
    if (names.size() > 1) {
        const std::string last = names.back();
        names.pop_back();
        query = joined(names, ", ") + ", and " + last;
    }
    const bool one = task.queries * task.values == 1;
    const std::string shown = one ? type.substr(0, type.size() - 1) : type;
    Template parts{
        "Some special magic " + shown +
            " are hidden within the following text. Make sure to memorize it. I will quiz you "
            "about the " +
            shown + " afterwards.\n",
        "What are all the special magic " + shown + " for " + query + " mentioned in the provided text?",
        " The special magic " + shown + " for " + query + " mentioned in the provided text are"};
    if (one) {
        parts.before = replaced(replaced(parts.before, "Some", "A"), " are ", " is ");
        parts.behind = replaced(parts.behind, "What are all", "What is");
        parts.prefix = replaced(parts.prefix, " text are", " text is");
    }
    fill(sample, parts, context);
    sample.most_tokens = 128;
    sample.metric = Metric::string_match_all;
    return sample;
}

// One chain of assignments among noise; `names` letters each.
std::string tracked_chain(Random& random, std::size_t noises, std::size_t name_length,
                          const std::string& value, std::vector<std::string>& variables) {
    constexpr std::size_t hops = 4;
    std::set<std::string> used;
    while (variables.size() < hops + 1) {
        std::string name = random.letters(name_length, 'A');
        if (used.insert(name).second) variables.push_back(std::move(name));
    }
    std::vector<std::string> chain = {"VAR " + variables[0] + " = " + value};
    for (std::size_t i = 0; i < hops; ++i)
        chain.push_back("VAR " + variables[i + 1] + " = VAR " + variables[i] + " ");
    std::vector<std::string> sentences(noises, noise);
    const std::vector<std::size_t> places = random.sample(noises, chain.size());
    for (std::size_t i = 0; i < chain.size(); ++i)
        sentences.insert(sentences.begin() + std::ptrdiff_t(places[i] + i), chain[i]);
    return replaced(joined(sentences, "\n"), ". \n", ".\n");
}

Template tracking_template(const std::string& value) {
    return {"Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
            "Question: Find all variables that are assigned the value " + value + " in the text above.",
            " Answer: According to the chain(s) of variable assignment in the text above, 5 variables are "
            "assigned "
            "the value " +
                value + ", they are: "};
}

Sample tracking_sample(Random random, std::size_t noises) {
    // An example first, solved: short names, few sentences.
    const std::string example_value = random.digits(5), value = random.digits(5);
    std::vector<std::string> example_variables, variables;
    const Template solved = tracking_template(example_value);
    const std::string example = solved.before +
                                tracked_chain(random, 5, 3, example_value, example_variables) + "\n" +
                                solved.behind + solved.prefix + joined(example_variables, " ") + "\n\n";
    Template parts = tracking_template(value);
    parts.before = example + parts.before;
    Sample sample;
    fill(sample, parts, tracked_chain(random, noises, 5, value, variables));
    sample.answers = variables;
    sample.most_tokens = 30;
    sample.metric = Metric::string_match_all;
    return sample;
}

struct WordList {
    std::string text;
    std::vector<std::string> common;
};

WordList numbered_words(Random& random, const std::vector<std::string>& words, std::size_t different,
                        int common_times, int other_times) {
    constexpr std::size_t common = 10;
    WordList list;
    std::vector<std::size_t> chosen = random.sample(words.size(), std::min(words.size(), different));
    random.shuffle(chosen);
    std::vector<std::string> all;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (i < common) list.common.push_back(words[chosen[i]]);
        for (int n = 0; n < (i < common ? common_times : other_times); ++n) all.push_back(words[chosen[i]]);
    }
    random.shuffle(all);
    for (std::size_t i = 0; i < all.size(); ++i)
        list.text += (i == 0 ? "" : " ") + std::to_string(i + 1) + ". " + all[i];
    return list;
}

Sample common_words_sample(Random random, std::size_t different, const std::vector<std::string>& words,
                           bool small) {
    const WordList example =
        small ? numbered_words(random, words, 20, 3, 1) : numbered_words(random, words, 40, 10, 3);
    const WordList list = small ? numbered_words(random, words, different, 6, 1)
                                : numbered_words(random, words, different, 30, 3);
    const Template parts{
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
        "ones that "
        "appear most often.\n",
        "Question: What are the 10 most common words in the above list?",
        " Answer: The top 10 words that appear most often in the list are:"};
    std::string solved = parts.before + example.text + "\n" + parts.behind + parts.prefix;
    for (std::size_t i = 0; i < example.common.size(); ++i)
        solved += std::string(" ") + std::to_string(i + 1) + ". " + example.common[i];
    Sample sample;
    fill(sample, {solved + "\n" + parts.before, parts.behind, parts.prefix}, list.text);
    sample.answers = list.common;
    sample.most_tokens = 120;
    sample.metric = Metric::string_match_all;
    return sample;
}

Sample frequent_words_sample(Random random, std::size_t words, std::uint32_t length) {
    // Zipf's law with exponent 2; the most frequent word is noise.
    const std::size_t vocabulary = std::max<std::size_t>(10, (length - 50) / 50);
    std::set<std::string> used;
    std::vector<std::string> coded;
    while (coded.size() < vocabulary) {
        std::string word = random.letters(6, 'a');
        if (used.insert(word).second) coded.push_back(std::move(word));
    }
    coded[0] = "...";
    const double zeta = M_PI * M_PI / 6;
    std::vector<std::string> all;
    for (std::size_t k = 0; k < vocabulary; ++k) {
        const auto count = std::size_t(double(words) / (double(k + 1) * double(k + 1)) / zeta);
        all.insert(all.end(), count, coded[k]);
    }
    random.shuffle(all);
    Sample sample;
    fill(sample,
         {"Read the following coded text and track the frequency of each coded word. Find the three most "
          "frequently "
          "appeared coded words. ",
          "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
          "frequently "
          "appeared words in the above coded text?",
          " Answer: According to the coded text above, the three most frequently appeared words are:"},
         joined(all, " "));
    sample.answers = {coded[1], coded[2], coded[3]};
    sample.most_tokens = 50;
    sample.metric = Metric::string_match_all;
    return sample;
}

}  // namespace

// Questions about documents: of each, its own documents, related ones, and its answers.
struct RulerGenerator::Documents {
    struct Question {
        std::string text;
        std::vector<std::string> answers;
        std::vector<std::size_t> own, related;
    };
    std::vector<std::string> documents;
    std::vector<Question> questions;

    // As a file has them: with the documents' texts instead of their numbers.
    struct Raw {
        Question question;
        std::vector<std::string> own, related;
    };

    // Documents without repetition, sorted.
    void index(const std::vector<Raw>& entries) {
        std::set<std::string> all;
        for (const Raw& raw : entries) {
            all.insert(raw.own.begin(), raw.own.end());
            all.insert(raw.related.begin(), raw.related.end());
        }
        documents.assign(all.begin(), all.end());
        const auto number = [&](const std::string& text) {
            return std::size_t(std::lower_bound(documents.begin(), documents.end(), text) -
                               documents.begin());
        };
        for (const Raw& raw : entries) {
            questions.push_back(raw.question);
            for (const std::string& text : raw.own) questions.back().own.push_back(number(text));
            for (const std::string& text : raw.related) questions.back().related.push_back(number(text));
        }
    }

    static std::unique_ptr<Documents> load(const std::string& path, bool squad) {
        std::ifstream file(path);
        if (!file) throw Error("cannot open the questions '" + path + "'");
        auto result = std::make_unique<Documents>();
        std::vector<Raw> raw;
        try {
            const nlohmann::json json = nlohmann::json::parse(file);
            if (squad) {
                for (const auto& article : json.at("data")) {
                    std::vector<std::string> paragraphs;
                    for (const auto& paragraph : article.at("paragraphs"))
                        paragraphs.push_back(paragraph.at("context").get<std::string>());
                    for (std::size_t p = 0; p < paragraphs.size(); ++p)
                        for (const auto& qa : article.at("paragraphs")[p].at("qas")) {
                            if (qa.value("is_impossible", false)) continue;
                            Question question{qa.at("question").get<std::string>(), {}, {}, {}};
                            for (const auto& answer : qa.at("answers"))
                                question.answers.push_back(answer.at("text").get<std::string>());
                            std::vector<std::string> others = paragraphs;
                            std::erase(others, paragraphs[p]);
                            raw.push_back({question, {paragraphs[p]}, others});
                        }
                }
            } else {
                for (const auto& entry : json) {
                    Question question{entry.at("question").get<std::string>(),
                                      {entry.at("answer").get<std::string>()},
                                      {},
                                      {}};
                    std::vector<std::string> own;
                    for (const auto& document : entry.at("context")) {
                        std::string text = document.at(0).get<std::string>() + "\n";
                        for (const auto& sentence : document.at(1)) text += sentence.get<std::string>();
                        own.push_back(std::move(text));
                    }
                    raw.push_back({question, own, {}});
                }
            }
        } catch (const nlohmann::json::exception& error) {
            throw Error("'" + path + "' isn't " + (squad ? "SQuAD 2.0" : "HotpotQA") +
                        " as published: " + error.what());
        }
        result->index(raw);
        if (result->questions.empty()) throw Error("'" + path + "' holds no questions");
        return result;
    }

    Sample sample(Random random, int index, std::size_t count) const {
        const Question& question = questions[std::size_t(index) % questions.size()];
        std::vector<std::size_t> chosen = question.own;
        std::vector<std::size_t> more = question.related;
        random.shuffle(more);
        std::set<std::size_t> taken(chosen.begin(), chosen.end());
        for (std::size_t i = 0; i < more.size() && chosen.size() < count; ++i)
            if (taken.insert(more[i]).second) chosen.push_back(more[i]);
        while (chosen.size() < std::min(count, documents.size())) {
            const std::size_t other = random.below(documents.size());
            if (taken.insert(other).second) chosen.push_back(other);
        }
        random.shuffle(chosen);
        std::string context;
        for (std::size_t i = 0; i < chosen.size(); ++i)
            context +=
                (i == 0 ? "" : "\n\n") + ("Document " + std::to_string(i + 1)) + ":\n" + documents[chosen[i]];
        const std::string instruction =
            "Answer the question based on the given documents. Only give me the answer and do not output any "
            "other "
            "words.";
        Sample sample;
        fill(sample,
             {instruction + "\n\nThe following are given documents.\n\n",
              "\n" + instruction + "\n\nQuestion: " + question.text, " Answer:"},
             context);
        sample.answers = question.answers;
        sample.most_tokens = 32;
        sample.metric = Metric::string_match_part;
        return sample;
    }
};

RulerGenerator::RulerGenerator(RulerMaterial material, RulerSettings settings, Count count)
    : material_(std::move(material)), settings_(settings), count_(std::move(count)) {
    essay_words_ = words_between_spaces(material_.essay);
    if (!material_.squad.empty()) squad_ = Documents::load(material_.squad, true);
    if (!material_.hotpotqa.empty()) hotpotqa_ = Documents::load(material_.hotpotqa, false);
}

RulerGenerator::~RulerGenerator() = default;

const std::vector<std::string>& ruler_tasks() {
    static const std::vector<std::string> tasks = [] {
        std::vector<std::string> all;
        for (const NeedleTask& task : needle_tasks) all.emplace_back(task.name);
        for (const char* name : {"vt", "cwe", "fwe", "qa_1", "qa_2"}) all.emplace_back(name);
        return all;
    }();
    return tasks;
}

std::string RulerGenerator::missing(const std::string& task) const {
    if (const NeedleTask* needle = find_needle_task(task)) {
        if (needle->haystack == Haystack::essay && essay_words_.empty()) return "a text to hide needles in";
        if (needle->key == Kind::words && material_.words.empty()) return "a list of words";
    }
    if (task == "cwe" && material_.words.empty()) return "a list of words";
    if (task == "qa_1" && !squad_) return "SQuAD 2.0";
    if (task == "qa_2" && !hotpotqa_) return "HotpotQA";
    return "";
}

Sample RulerGenerator::generate(const std::string& task, int index) const {
    const auto make = [&](std::size_t size, int attempt) {
        const Random random(settings_.seed + std::uint64_t(attempt) * 1000003, task, index);
        if (const NeedleTask* needle = find_needle_task(task))
            return needle_sample(*needle, random, size, essay_words_, material_.words);
        if (task == "vt") return tracking_sample(random, size);
        if (task == "cwe") return common_words_sample(random, size, material_.words, settings_.length < 4096);
        if (task == "fwe") return frequent_words_sample(random, size, settings_.length);
        if (task == "qa_1" && squad_) return squad_->sample(random, index, size);
        if (task == "qa_2" && hotpotqa_) return hotpotqa_->sample(random, index, size);
        throw Error("no task '" + task + "'; there are: " + joined(ruler_tasks(), ", "), Error::Kind::usage);
    };
    const auto tokens = [&](const Sample& sample) {
        return count_(sample) + std::size_t(sample.most_tokens);
    };
    const auto documents_of = [&](const std::string& name) {
        return (name == "qa_1" ? squad_ : hotpotqa_)->documents.size();
    };
    // Documents are as long as they are; everything else is filled to 98%, if need be with other numbers.
    const bool documents = task.starts_with("qa_");
    const std::size_t least = task == "vt" ? 5 : task == "cwe" ? 11 : find_needle_task(task) ? 4 : 1;
    const std::size_t most = task == "cwe" ? material_.words.size() : std::size_t(1) << 24;
    Sample best;
    std::size_t best_tokens = 0;
    for (int attempt = 0; attempt < 20; ++attempt) {
        std::size_t low = least, high = least;  // low fits
        Sample sample = make(low, attempt);
        if (tokens(sample) > settings_.length) continue;
        while (high < most) {  // double it until it doesn't fit
            high = std::min(most, 2 * low);
            Sample larger = make(high, attempt);
            if (tokens(larger) > settings_.length) break;
            low = high;
            sample = std::move(larger);
            if (documents && low > documents_of(task)) break;  // all there are
        }
        while (low < high) {
            const std::size_t middle = (low + high + 1) / 2;
            Sample larger = make(middle, attempt);
            if (tokens(larger) <= settings_.length) {
                low = middle;
                sample = std::move(larger);
            } else {
                high = middle - 1;
            }
        }
        const std::size_t filled = tokens(sample);
        if (filled > best_tokens) {
            best_tokens = filled;
            best = std::move(sample);
        }
        if (documents || double(best_tokens) >= 0.98 * settings_.length) break;
    }
    if (best_tokens == 0)
        throw Error(
            task + " has no room in " + std::to_string(settings_.length) + " tokens; use a larger --length",
            Error::Kind::usage);
    best.task = task;
    best.id = task + ":" + std::to_string(index);
    return best;
}

std::vector<std::string> read_words(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw Error("cannot open the list of words '" + path + "'");
    std::set<std::string> words;
    for (std::string line; std::getline(file, line);)
        if (line.size() >= 4 && line.size() <= 9 &&
            std::all_of(line.begin(), line.end(), [](char c) { return c >= 'a' && c <= 'z'; }))
            words.insert(line);
    if (words.size() < 1000)
        throw Error("'" + path + "' holds " + std::to_string(words.size()) +
                    " words of 4 to 9 letters; a thousand are needed");
    return {words.begin(), words.end()};
}

std::string read_haystack(const std::string& path) {
    std::vector<std::filesystem::path> files;
    if (std::filesystem::is_directory(path)) {
        for (const auto& entry : std::filesystem::directory_iterator(path))
            if (entry.path().extension() == ".txt") files.push_back(entry.path());
        std::sort(files.begin(), files.end());
    } else {
        files.emplace_back(path);
    }
    std::string text;
    for (const std::filesystem::path& name : files) {
        std::ifstream file(name, std::ios::binary);
        if (!file) throw Error("cannot open the haystack '" + name.string() + "'");
        text += std::string(std::istreambuf_iterator<char>(file), {}) + "\n";
    }
    if (words_between_spaces(text).size() < 100)
        throw Error("the haystack '" + path + "' holds no text to hide needles in");
    return text;
}

}  // namespace holdfast
