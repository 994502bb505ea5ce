#include "cli/line_editor.hpp"

#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cwchar>
#include <filesystem>
#include <iostream>

#include "cli/terminal.hpp"

namespace holdfast {

namespace {

std::string history_path(const std::string& name) {
    const char* state = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    if ((state == nullptr || *state == '\0') && home == nullptr) return "";
    const std::string base = state != nullptr && *state != '\0' ? state : std::string(home) + "/.local/state";
    return base + "/holdfast/" + name;
}

// One character from the terminal; -1 after a signal that interrupts.
int read_character(EditLine*, wchar_t* character) {
    std::mbstate_t shift{};
    for (;;) {
        // A signal may come at any time, to any thread: waiting ends now and then to look.
        pollfd input{STDIN_FILENO, POLLIN, 0};
        const int ready = poll(&input, 1, 50);
        if (interrupted) return -1;  // even if something was typed since
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        char byte;
        const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
        if (count == 0) return 0;
        if (count < 0) return -1;
        if (byte == '\0') continue;  // a Ctrl-D from before the terminal was ours
        const std::size_t length = std::mbrtowc(character, &byte, 1, &shift);
        if (length == std::size_t(-1)) {  // no UTF-8: as the character that stands for such bytes
            *character = L'\uFFFD';
            return 1;
        }
        if (length != std::size_t(-2)) return 1;
    }
}

}  // namespace

struct LineEditor::State {
    EditLine* editor = nullptr;  // null: no terminal
    History* history = nullptr;
    HistEvent event = {};
    std::string path;
    std::string prompt;
};

LineEditor::LineEditor(const std::string& name) : state_(new State) {
    State& s = *state_;
    if (isatty(STDIN_FILENO) != 1) return;
    std::setlocale(LC_CTYPE, "C.UTF-8");
    s.editor = el_init("holdfast", stdin, stderr, stderr);
    if (s.editor == nullptr) return;
    s.history = history_init();
    s.path = history_path(name);
    history(s.history, &s.event, H_SETSIZE, 1000);
    history(s.history, &s.event, H_SETUNIQUE, 1);
    if (!s.path.empty()) history(s.history, &s.event, H_LOAD, s.path.c_str());
    el_set(s.editor, EL_CLIENTDATA, &s);
    el_set(s.editor, EL_EDITOR, "emacs");
    el_set(s.editor, EL_HIST, history, s.history);
    el_set(s.editor, EL_GETCFN, read_character);
    el_set(
        s.editor, EL_PROMPT, +[](EditLine* editor) {
            State* state = nullptr;
            el_get(editor, EL_CLIENTDATA, &state);
            return state->prompt.data();
        });
    el_set(s.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::~LineEditor() {
    State& s = *state_;
    if (s.history != nullptr) history_end(s.history);
    if (s.editor != nullptr) el_end(s.editor);
}

LineEditor::Result LineEditor::read(const std::string& prompt, std::string& line) {
    State& s = *state_;
    if (s.editor == nullptr) {
        if (std::getline(std::cin, line)) return Result::line;
        return interrupted ? Result::interrupted : Result::end;
    }
    s.prompt = prompt;
    int length = 0;
    const char* text = el_gets(s.editor, &length);
    if (text == nullptr || length <= 0) {
        el_reset(s.editor);  // drops what was typed
        std::fputc('\n', stderr);
        return interrupted ? Result::interrupted : Result::end;
    }
    line.assign(text, std::size_t(length));
    while (line.ends_with('\n')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) return Result::line;
    history(s.history, &s.event, H_ENTER, line.c_str());
    if (!s.path.empty()) {  // a history that can't be kept is no failure
        std::error_code error;
        std::filesystem::create_directories(std::filesystem::path(s.path).parent_path(), error);
        const mode_t mask = umask(0077);
        history(s.history, &s.event, H_SAVE, s.path.c_str());
        umask(mask);
    }
    return Result::line;
}

}  // namespace holdfast
