// Shell completions and manual pages, written from the commands' own options.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "holdfast/holdfast.hpp"
#include "base/whole_file.hpp"
#include "cli/commands.hpp"

namespace holdfast {

namespace {

struct Word {
    std::string name, description;
};

// A command with those above it: "eval ruler".
struct Command {
    std::string path;
    const CLI::App* app;
    std::vector<Word> commands() const {
        std::vector<Word> words;
        for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
            words.push_back({sub->get_name(), sub->get_description()});
        return words;
    }
    // Without what stands by its place alone.
    std::vector<const CLI::Option*> options() const {
        std::vector<const CLI::Option*> all;
        for (const CLI::Option* option : app->get_options())
            if (option->nonpositional()) all.push_back(option);
        return all;
    }
    std::vector<const CLI::Option*> arguments() const {
        std::vector<const CLI::Option*> all;
        for (const CLI::Option* option : app->get_options())
            if (!option->nonpositional()) all.push_back(option);
        return all;
    }
};

std::vector<Command> all_commands(const CLI::App& app, const std::string& path = "") {
    std::vector<Command> all = {{path, &app}};
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        for (Command& command :
             all_commands(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name()))
            all.push_back(std::move(command));
    return all;
}

std::vector<std::string> names(const CLI::Option& option) {
    std::vector<std::string> all;
    for (const std::string& name : option.get_snames()) all.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) all.push_back("--" + name);
    return all;
}

bool takes_value(const CLI::Option& option) {
    return option.get_items_expected_max() > 0;
}

// What can stand behind an option, where that is a short list.
std::vector<std::string> values(const CLI::Option& option) {
    const std::string name = option.get_lnames().empty() ? "" : option.get_lnames().front();
    if (name == "method" || name == "methods") {
        std::vector<std::string> all;
        for (const NamedMethod& method : named_methods()) all.push_back(method.name);
        return all;
    }
    if (name == "kv-type") return {kv_type_name(KvType::f16), kv_type_name(KvType::q8_0)};
    if (name == "rope-scaling") return {"none", "linear", "yarn"};
    return {};
}

std::string joined(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, " "));
}

// Text between single quotes of a shell.
std::string shell_quoted(const std::string& text) {
    std::string result = "'";
    for (char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

std::string bash_completion(const std::vector<Command>& commands) {
    std::string branches, choices;
    std::map<std::string, std::string> listed;
    for (const Command& command : commands) {
        std::string words, subcommands;
        for (const Word& sub : command.commands()) subcommands += sub.name + " ";
        for (const CLI::Option* option : command.options()) {
            words += joined(names(*option)) + " ";
            if (!values(*option).empty())
                for (const std::string& name : names(*option)) listed[name] = joined(values(*option));
        }
        branches += fmt::format("        {}) commands={}; options={} ;;\n", shell_quoted(command.path),
                                shell_quoted(subcommands), shell_quoted(words));
    }
    for (const auto& [name, list] : listed)
        choices += fmt::format("        {}) values={} ;;\n", name, shell_quoted(list));
    return fmt::format(R"(# bash completion for holdfast
_holdfast_words() {{
    case "$1" in
{}    esac
}}
_holdfast() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}"
    local path="" commands="" options="" values="" i
    _holdfast_words ""
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ " $commands" == *" ${{COMP_WORDS[i]}} "* ]]; then
            path="${{path:+$path }}${{COMP_WORDS[i]}}"
            _holdfast_words "$path"
        fi
    done
    case "$previous" in
{}    esac
    if [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [[ -n $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$word"))
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}}
complete -F _holdfast holdfast
)",
                       branches, choices);
}

// Text in the brackets of _arguments.
std::string zsh_text(const std::string& text) {
    std::string result;
    for (char c : text) {
        if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
        result += c;
    }
    return result;
}

std::string zsh_completion(const std::vector<Command>& commands) {
    std::string functions;
    for (const Command& command : commands) {
        std::string name = "_holdfast";
        for (char c : command.path) name += c == ' ' || c == '-' ? '_' : c;
        if (!command.path.empty()) name.insert(std::string("_holdfast").size(), "_");
        std::string arguments;
        for (const CLI::Option* option : command.options()) {
            const std::vector<std::string> all = names(*option);
            std::string value;
            if (takes_value(*option))
                value =
                    ":value:" + (values(*option).empty() ? "_files" : "(" + joined(values(*option)) + ")");
            for (const std::string& one : all)
                arguments += fmt::format(
                    " \\\n        {}",
                    shell_quoted(fmt::format("*{}[{}]{}", one, zsh_text(option->get_description()), value)));
        }
        functions += name + "() {\n";
        if (command.commands().empty()) {
            functions += "    _arguments" + arguments + " \\\n        '*:file:_files'\n}\n";
            continue;
        }
        std::string list, cases;
        for (const Word& sub : command.commands()) {
            list += " " + shell_quoted(zsh_text(sub.name) + ":" + sub.description);
            std::string function = name + "_" + sub.name;
            std::ranges::replace(function, '-', '_');
            cases += fmt::format("                {}) {} ;;\n", sub.name, function);
        }
        functions += fmt::format(R"(    local state
    local -a commands
    commands=({})
    _arguments -C{} \
        '1: :->command' '*:: :->rest'
    case $state in
        command) _describe command commands ;;
        rest)
            case $words[1] in
{}            esac ;;
    esac
}}
)",
                                 list, arguments, cases);
    }
    return "#compdef holdfast\n" + functions + "_holdfast \"$@\"\n";
}

std::string fish_completion(const std::vector<Command>& commands) {
    // __holdfast_at PATH: the words so far choose this command, and none below it yet.
    std::string known;
    for (const Command& command : commands)
        if (!command.path.empty()) known += " " + shell_quoted(command.path);
    std::string text = fmt::format(R"(# fish completion for holdfast
function __holdfast_at
    set -l path
    for word in (commandline -opc)[2..]
        set -l longer (string join ' ' $path $word)
        contains -- $longer{} && set path $longer
    end
    test "$path" = "$argv[1]"
end
complete -c holdfast -e
)",
                                   known);
    for (const Command& command : commands) {
        const std::string condition = shell_quoted("__holdfast_at " + shell_quoted(command.path));
        for (const Word& sub : command.commands())
            text += fmt::format("complete -c holdfast -f -n {} -a {} -d {}\n", condition,
                                shell_quoted(sub.name), shell_quoted(sub.description));
        for (const CLI::Option* option : command.options()) {
            text += "complete -c holdfast -n " + condition;
            for (const std::string& name : option->get_snames()) text += " -s " + name;
            for (const std::string& name : option->get_lnames()) text += " -l " + name;
            if (!values(*option).empty())
                text += " -x -a " + shell_quoted(joined(values(*option)));
            else if (takes_value(*option))
                text += " -r";
            text += " -d " + shell_quoted(option->get_description()) + "\n";
        }
    }
    return text;
}

// Text of a manual page: no line of it is a request.
std::string roff(const std::string& text) {
    std::string result;
    for (char c : text) {
        if (c == '\\')
            result += "\\e";
        else if (c == '-')
            result += "\\-";
        else
            result += c;
    }
    return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

std::string manual_page(const Command& command) {
    const std::string name = command.path.empty() ? "holdfast" : "holdfast " + command.path;
    std::string title = name;
    std::ranges::replace(title, ' ', '-');
    std::string usage = "\\fB" + roff(name) + "\\fR";
    if (!command.commands().empty()) usage += " \\fICOMMAND\\fR";
    if (!command.options().empty()) usage += " [\\fIOPTIONS\\fR]";
    for (const CLI::Option* argument : command.arguments())
        usage += fmt::format(" [\\fI{}\\fR{}]", roff(argument->get_name(true)),
                             argument->get_items_expected_max() > 1 ? "..." : "");
    std::string text =
        fmt::format(".TH {} 1 \"\" \"holdfast {}\" \"User Commands\"\n", roff(title), version());
    text += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n", roff(title),
                        roff(command.app->get_description()), usage);
    if (!command.commands().empty()) {
        text += ".SH COMMANDS\n";
        for (const Word& sub : command.commands())
            text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(sub.name), roff(sub.description));
    }
    if (!command.arguments().empty()) {
        text += ".SH ARGUMENTS\n";
        for (const CLI::Option* argument : command.arguments())
            text += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(argument->get_name(true)),
                                roff(argument->get_description()));
    }
    text += ".SH OPTIONS\n";
    for (const CLI::Option* option : command.options()) {
        std::string all;
        for (const std::string& one : names(*option))
            all += (all.empty() ? "" : ", ") + ("\\fB" + roff(one) + "\\fR");
        if (takes_value(*option)) all += " \\fIVALUE\\fR";
        text += fmt::format(".TP\n{}\n{}\n", all, roff(option->get_description()));
        if (!option->get_default_str().empty())
            text += fmt::format("(default: {})\n", roff(option->get_default_str()));
        if (!values(*option).empty()) text += fmt::format("One of: {}.\n", roff(joined(values(*option))));
    }
    text += ".SH EXIT STATUS\n0; 1 for a failure; 2 for a request that can't be meant; 130 after Ctrl\\-C.\n";
    return text;
}

void write_all(const std::vector<Command>& commands, const std::filesystem::path& folder) {
    std::filesystem::create_directories(folder / "man1");
    for (const Command& command : commands) {
        std::string name = "holdfast" + (command.path.empty() ? "" : "-" + command.path) + ".1";
        std::ranges::replace(name, ' ', '-');
        write_whole_file(folder / "man1" / name, manual_page(command));
    }
    write_whole_file(folder / "holdfast.bash", bash_completion(commands));
    write_whole_file(folder / "_holdfast", zsh_completion(commands));
    write_whole_file(folder / "holdfast.fish", fish_completion(commands));
}

}  // namespace

void add_manual(CLI::App& app) {
    const auto shell = std::make_shared<std::string>();
    CLI::App* completion =
        app.add_subcommand("completion", "Write completions for a shell: bash, zsh or fish");
    completion->add_option("shell", *shell, "bash, zsh or fish")->required();
    completion->callback([shell, &app] {
        const std::map<std::string, std::function<std::string(const std::vector<Command>&)>> shells = {
            {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};
        const auto found = shells.find(*shell);
        if (found == shells.end())
            throw Error("no completions for '" + *shell + "'; there are: bash, zsh, fish",
                        Error::Kind::usage);
        fmt::print("{}", found->second(all_commands(app)));
    });

    const auto words = std::make_shared<std::vector<std::string>>();
    const auto folder = std::make_shared<std::string>();
    CLI::App* manual = app.add_subcommand("manual", "Write the manual page of a command, for man(1)");
    manual->add_option("command", *words, "The command, such as eval ruler; none: holdfast itself");
    manual->add_option("--write", *folder,
                       "Write the pages of all commands and the completions into this folder");
    manual->callback([words, folder, &app] {
        if (!folder->empty()) {
            write_all(all_commands(app), *folder);
            return;
        }
        for (const Command& command : all_commands(app))
            if (command.path == joined(*words)) {
                fmt::print("{}", manual_page(command));
                return;
            }
        throw Error("there is no command '" + joined(*words) + "'", Error::Kind::usage);
    });
}

}  // namespace holdfast
