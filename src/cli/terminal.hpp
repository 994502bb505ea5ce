// What the commands share in talking to their user.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "engine/context.hpp"

namespace holdfast {

// Set by Ctrl-C (SIGINT) and SIGTERM after watch_interrupts(); a second one ends the process at once.
extern std::atomic<bool> interrupted;
extern std::atomic<int> interrupt_signal;  // which it was
inline bool was_interrupted() {
    return interrupted;
}
void watch_interrupts();  // once more: forgets the last one

// An answer's text to stdout, at once; true, so that the answer goes on.
bool print_text(std::string_view text);

// "12.3 MiB"
std::string format_bytes(std::size_t bytes);

// A line on stderr that redraws itself while a context is read, if stderr is a terminal; else nothing.
class ProgressLine {
  public:
    ProgressLine();
    ~ProgressLine() { clear(); }
    void show(const ReadProgress& progress);
    void clear();

  private:
    bool terminal_;
    bool shown_ = false;
    double last_seconds_ = -1;
};

}  // namespace holdfast
