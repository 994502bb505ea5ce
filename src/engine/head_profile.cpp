#include "engine/head_profile.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "holdfast/error.hpp"
#include "base/whole_file.hpp"
#include "shipped_profiles.hpp"  // made from profiles/*.json

namespace holdfast {

namespace {

HeadProfile parse_profile(const std::string& text, const std::string& source) {
    HeadProfile profile;
    try {
        const nlohmann::json json = nlohmann::json::parse(text);
        if (json.at("format") != "holdfast-heads-1") throw Error("the format is another one");
        profile.fingerprint = json.at("fingerprint").get<std::string>();
        profile.model = json.at("model").get<std::string>();
        profile.prompts = json.at("prompts").get<int>();
        profile.layers = int(json.at("importance").size());
        for (const auto& layer : json.at("importance")) {
            const auto heads = layer.get<std::vector<double>>();
            if (profile.kv_heads != 0 && int(heads.size()) != profile.kv_heads)
                throw Error("its layers have different numbers of heads");
            profile.kv_heads = int(heads.size());
            profile.importance.insert(profile.importance.end(), heads.begin(), heads.end());
        }
        double sum = 0;
        for (double share : profile.importance) {
            if (!(share >= 0) || !std::isfinite(share)) throw Error("an importance is negative");
            sum += share;
        }
        if (!(sum > 0)) throw Error("no head has any importance");
        for (double& share : profile.importance) share /= sum;
    } catch (const std::exception& error) {
        throw Error("'" + source + "' is no profile of heads: " + error.what() +
                    "; make one with: holdfast profile-heads -m MODEL -o FILE");
    }
    return profile;
}

void check_model(const HeadProfile& profile, const GgufModel& model, const std::string& source) {
    const HyperParameters& p = model.parameters();
    if (profile.fingerprint != model.fingerprint() || profile.layers != p.layers ||
        profile.kv_heads != p.kv_heads)
        throw Error("'" + source + "' is the profile of another model, " + profile.model + " (" +
                    profile.fingerprint + "), not of '" + model.path() + "' (" + model.fingerprint() +
                    "); make one with: holdfast profile-heads -m " + model.path() + " -o FILE");
}

}  // namespace

void write_head_profile(const HeadProfile& profile, const std::string& path) {
    nlohmann::ordered_json json = {{"format", "holdfast-heads-1"},
                                   {"model", profile.model},
                                   {"fingerprint", profile.fingerprint},
                                   {"prompts", profile.prompts}};
    std::string text = json.dump(1);
    text.resize(text.size() - 2);  // opened again, for one layer a line
    text += ",\n \"importance\": [";
    for (int l = 0; l < profile.layers; ++l) {
        text += l == 0 ? "\n  [" : ",\n  [";
        for (int h = 0; h < profile.kv_heads; ++h) {
            char number[32];
            std::snprintf(number, sizeof number, "%s%.6f", h == 0 ? "" : ", ",
                          profile.importance[std::size_t(l * profile.kv_heads + h)]);
            text += number;
        }
        text += "]";
    }
    text += "\n ]\n}\n";
    write_whole_file(path, text);
}

HeadProfile load_head_profile(const std::string& path, const GgufModel& model) {
    if (path.empty()) {
        const std::string& fingerprint = model.fingerprint();
        for (const char* text : shipped_profiles) {
            HeadProfile profile = parse_profile(text, "shipped profile");
            if (profile.fingerprint == fingerprint) return profile;
        }
        throw Error("headkv needs a profile of the model's heads, and none comes with holdfast for '" +
                        model.path() + "'. Make one: holdfast profile-heads -m " + model.path() +
                        " -o heads.json; and use it: --set profile=heads.json",
                    Error::Kind::usage);
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error("cannot open the profile '" + path + "'");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    HeadProfile profile = parse_profile(text, path);
    check_model(profile, model, path);
    return profile;
}

}  // namespace holdfast
