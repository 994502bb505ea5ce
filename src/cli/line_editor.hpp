// Lines from the user: with editing and history on a terminal, as they come from anything else.
#pragma once

#include <memory>
#include <string>

namespace holdfast {

class LineEditor {
  public:
    // The history is kept in $XDG_STATE_HOME/holdfast/NAME, or ~/.local/state/holdfast/NAME.
    explicit LineEditor(const std::string& name);
    ~LineEditor();

    enum class Result { line, end, interrupted };
    // prompt: shown on a terminal. line: without its end.
    Result read(const std::string& prompt, std::string& line);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast
