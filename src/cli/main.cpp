#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <new>

#include "holdfast/error.hpp"
#include "cli/commands.hpp"
#include "cli/terminal.hpp"
#include "holdfast/holdfast.hpp"
#include "kernels/simd.hpp"
#include "text/tokenizer.hpp"

// What could still escape is a failure to print a failure.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    using holdfast::Error;
    CLI::App app{"Runs long-context language models in a fraction of their KV cache."};
    app.set_version_flag("--version", std::string("holdfast ") + holdfast::version());
    app.require_subcommand(1);
    app.failure_message(CLI::FailureMessage::help);
    holdfast::add_analyze(app);
    holdfast::add_ask(app);
    holdfast::add_bench(app);
    holdfast::add_chat(app);
    holdfast::add_compress(app);
    holdfast::add_eval(app);
    holdfast::add_info(app);
    holdfast::add_manual(app);
    holdfast::add_methods(app);
    holdfast::add_profile_heads(app);
    holdfast::add_report(app);
    try {
        holdfast::silence_libraries();
        holdfast::watch_interrupts();
        if (const char* name = std::getenv("HOLDFAST_SIMD")) holdfast::use_simd_target(name);
        app.parse(argc, argv);  // runs the command
        return 0;
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        fmt::print(stderr, "holdfast: {}\nRun with --help for more information.\n", error.what());
        return 2;
    } catch (const Error& error) {
        fmt::print(stderr, "holdfast: {}\n", error.what());
        switch (error.kind) {
            case Error::Kind::usage:
                return 2;
            case Error::Kind::failure:
                return 1;
            case Error::Kind::interrupted:
                return 130;
        }
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "holdfast: out of memory; a smaller context or budget needs less\n");
    } catch (const std::exception& error) {
        fmt::print(stderr, "holdfast: {}\n", error.what());
    }
    return 1;
}
