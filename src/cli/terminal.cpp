#include "cli/terminal.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

namespace holdfast {

std::atomic<bool> interrupted{false};
std::atomic<int> interrupt_signal{0};

void watch_interrupts() {
    struct sigaction action {};
    action.sa_handler = [](int signal) {
        interrupt_signal = signal;
        interrupted = true;
    };
    interrupted = false;
    action.sa_flags = int(SA_RESETHAND);  // the second one has its default effect
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

bool print_text(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return true;
}

std::string format_bytes(std::size_t bytes) {
    if (bytes < 1024) return fmt::format("{} B", bytes);
    if (bytes < std::size_t(1) << 20) return fmt::format("{:.1f} KiB", double(bytes) / 1024);
    if (bytes < std::size_t(1) << 30) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
    return fmt::format("{:.2f} GiB", double(bytes) / (1 << 30));
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::show(const ReadProgress& p) {
    if (!terminal_ || (p.seconds - last_seconds_ < 0.1 && p.share() < 1)) return;
    last_seconds_ = p.seconds;
    const double share = p.share();
    fmt::print(stderr,
               "\r\033[Kreading {} tokens: layer {}/{}, token {}, {:.0f}%, {:.0f} tokens/s, {:.0f} s left",
               p.tokens, p.layer + 1, p.layers, p.tokens_done, 100 * share, share * p.tokens / p.seconds,
               p.seconds / share * (1 - share));
    std::fflush(stderr);
    shown_ = true;
}

void ProgressLine::clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
}

}  // namespace holdfast
