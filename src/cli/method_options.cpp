#include "cli/method_options.hpp"

namespace holdfast {

void MethodOptions::add(CLI::App* command) {
    command
        ->add_option("--budget", budget,
                     "Kept share of the context (20%), or tokens per KV head on average (1024)")
        ->capture_default_str();
    command
        ->add_option("--method", method,
                     "How to choose what is kept: a name or a composition of `holdfast methods`")
        ->capture_default_str();
    command->add_option("--set", settings, "A parameter of the method, name=value")->allow_extra_args(false);
    command->add_flag("--explain", explain, "Say what the method consists of, and stop");
}

}  // namespace holdfast
