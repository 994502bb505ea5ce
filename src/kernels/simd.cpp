#include "kernels/simd.hpp"

#include <cstdlib>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {
std::int64_t Target() {
    return HWY_TARGET;
}
}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "holdfast/error.hpp"

namespace holdfast {

HWY_EXPORT(Target);

std::vector<SimdTarget> simd_targets() {
    std::vector<SimdTarget> targets;
    hwy::SetSupportedTargetsForTest(0);
    const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
    for (std::int64_t id = 1; id > 0 && id <= usable; id <<= 1)  // lower bits are better targets
        if (usable & id) targets.push_back({id, hwy::TargetName(id)});
    return targets;
}

void use_simd_target(const std::string& name) {
    std::string known;
    for (const SimdTarget& target : simd_targets()) {
        if (target.name == name) {
            hwy::SetSupportedTargetsForTest(target.id);
            hwy::GetChosenTarget().Update(hwy::SupportedTargets());
            return;
        }
        known += (known.empty() ? "" : ", ") + target.name;
    }
    throw Error("no instruction set '" + name + "' here; there are: " + known, Error::Kind::usage);
}

std::string current_simd_target() {
    return hwy::TargetName(HWY_DYNAMIC_DISPATCH(Target)());
}

}  // namespace holdfast
#endif
