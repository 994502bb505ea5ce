// What analyses found, as documents and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analyze/fragility.hpp"
#include "analyze/perturbation.hpp"
#include "report/document.hpp"

namespace holdfast {

// What stays the same between the analyses of one document and question.
struct AnalysisSubject {
    std::string model, question;
    std::vector<std::string> pieces;   // the context, token by token
    std::vector<std::string> answer;   // token by token
    std::vector<std::string> methods;  // names of the kept sets: "snapkv 20%"
    std::vector<int> layers;           // that evict
    int heads = 0, kv_heads = 0;
};

Document perturbation_report(const AnalysisSubject& subject, const PerturbationAnalysis& analysis);
nlohmann::ordered_json perturbation_json(const AnalysisSubject& subject,
                                         const PerturbationAnalysis& analysis);

Document fragility_report(const AnalysisSubject& subject, const FragilityAnalysis& analysis,
                          double threshold);
nlohmann::ordered_json fragility_json(const AnalysisSubject& subject, const FragilityAnalysis& analysis,
                                      double threshold);

// Of each kept set: how many (layer, KV head) pairs keep each token [methods][context tokens].
using TokenCounts = std::vector<std::vector<int>>;
TokenCounts count_kept(const AnalysisSubject& subject, std::span<const RaggedCache* const> kept);
// Text of whole characters: tokens that share one are put together, with the largest share of theirs.
std::vector<ColouredText::Piece> coloured_pieces(const AnalysisSubject& subject,
                                                 const std::vector<int>& counts);
Document tokens_report(const AnalysisSubject& subject, const TokenCounts& counts);
nlohmann::ordered_json tokens_json(const AnalysisSubject& subject, const TokenCounts& counts);

}  // namespace holdfast
