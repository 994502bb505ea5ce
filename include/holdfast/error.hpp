// The one exception type of holdfast.
#pragma once

#include <stdexcept>
#include <string>

#include "holdfast/export.h"

namespace holdfast {

// Says what was wrong, with which input, and what to do about it.
class HOLDFAST_API Error : public std::runtime_error {
  public:
    enum class Kind {
        usage,        // the request can't be meant as written; exit code 2
        failure,      // the request is sound, but carrying it out failed; exit code 1
        interrupted,  // the user asked to stop; exit code 130
    };

    explicit Error(const std::string& what, Kind kind = Kind::failure)
        : std::runtime_error(what), kind(kind) {}

    const Kind kind;
};

}  // namespace holdfast
