// The Python module holdfast._core; python/holdfast/_core.pyi says what it has.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>

#include "holdfast/holdfast.hpp"

namespace py = pybind11;
using namespace holdfast;

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

// Ctrl-C in Python's main thread stops what it computes. Asked between nodes of a graph, so seldom looked up.
bool signalled() {
    using Clock = std::chrono::steady_clock;
    thread_local Clock::time_point next;
    const Clock::time_point now = Clock::now();
    if (now < next) return false;
    next = now + std::chrono::milliseconds(20);
    const py::gil_scoped_acquire lock;
    return PyErr_CheckSignals() != 0;
}

Method method_of(const std::string& name, const py::dict& settings) {
    std::vector<std::string> list;
    for (const auto& [key, value] : settings)
        list.push_back(std::string(py::str(key)) + "=" + std::string(py::str(value)));
    return Method::parse(name, list);
}

// A budget as text, or a count of tokens; a share such as 0.2 would be ambiguous.
Budget budget_of(const py::object& budget) {
    return Budget::parse(std::string(py::str(budget)));
}

Context compress(const Model& model, const std::string& document, const std::string& method,
                 const py::object& budget, const py::dict& settings, const std::string& question,
                 const py::object& progress) {
    const Method chosen = method_of(method, settings);
    const Budget amount = chosen.keeps_all() ? Budget::everything() : budget_of(budget);
    CompressOptions options;
    options.question = question;
    options.progress = [&](const ReadProgress& p) {
        if (signalled()) return false;
        const py::gil_scoped_acquire lock;
        return progress.is_none() || !progress(p.share()).is(py::bool_(false));
    };
    const py::gil_scoped_release unlock;
    return model.compress(document, chosen, amount, options);
}

Context load(const std::string& path, const Model* model) {
    const py::gil_scoped_release unlock;
    if (model != nullptr) return model->load(path);
    const ContextInfo info = read_context_info(path);
    return Model(info.model_path, info.model_options, 0, signalled).load(path);
}

struct Talk {
    Session session;
    int turn = 0;  // asked so far
};

// The pieces of one answer.
struct Pieces {
    py::object talk;
    int turn;
    int most;
    std::string next() {
        auto& [session, current] = talk.cast<Talk&>();
        if (turn == current) {
            const py::gil_scoped_release unlock;
            std::string text;
            while (most-- > 0) {
                if (!session.next(text)) break;
                if (!text.empty()) return text;
            }
            turn = -1;  // over
            text = session.end();
            if (!text.empty()) return text;
        }
        throw py::stop_iteration();
    }
};

}  // namespace

PYBIND11_MODULE(_core, module) {
    static py::exception<Error> error(module, "Error", PyExc_RuntimeError);
    static py::exception<Error> usage(module, "UsageError",
                                      py::make_tuple(error, py::handle(PyExc_ValueError)));
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) std::rethrow_exception(thrown);
        } catch (const Error& e) {
            if (PyErr_Occurred()) return;  // what a signal handler raised
            if (e.kind == Error::Kind::interrupted)
                PyErr_SetString(PyExc_KeyboardInterrupt, e.what());
            else
                py::set_error(e.kind == Error::Kind::usage ? usage : error, e.what());
        }
    });
    module.attr("__version__") = version();

    py::class_<Model>(module, "Model")
        .def(py::init([](const std::string& path, std::uint32_t context_length,
                         const std::string& rope_scaling, float rope_scale, int threads) {
                 return Model(path.empty() ? default_model_path() : path,
                              {context_length, rope_scaling, rope_scale}, threads, signalled);
             }),
             py::arg("path") = "", py::kw_only(), py::arg("context_length") = 0, py::arg("rope_scaling") = "",
             py::arg("rope_scale") = 0.0f, py::arg("threads") = 0, Unlocked())
        .def_property_readonly("name", &Model::name)
        .def_property_readonly("path", &Model::path)
        .def_property_readonly("fingerprint", &Model::fingerprint)
        .def_property_readonly("context_length", &Model::context_length)
        .def_property_readonly("layers", &Model::layers)
        .def_property_readonly("kv_heads", &Model::kv_heads)
        .def_property_readonly("head_dim", &Model::head_dim)
        .def_property_readonly("threads", &Model::threads)
        .def("tokenize", &Model::tokenize, py::arg("text"))
        .def(
            "text", [](const Model& model, const std::vector<int>& tokens) { return model.text(tokens); },
            py::arg("tokens"));

    py::class_<Context>(module, "Context")
        .def_static("compress", compress, py::arg("model"), py::arg("document"),
                    py::arg("method") = "layer-defensive", py::arg("budget") = "20%", py::kw_only(),
                    py::arg("settings") = py::dict(), py::arg("question") = "",
                    py::arg("progress") = py::none())
        .def_static("load", load, py::arg("path"), py::arg("model") = nullptr)
        .def(
            "save",
            [](const Context& context, const std::string& path, const std::string& kv_type) {
                context.save(path, parse_kv_type(kv_type));
            },
            py::arg("path"), py::arg("kv_type") = "f16", Unlocked())
        .def(
            "compressed",
            [](const Context& context, const std::string& method, const py::object& budget,
               const py::dict& settings) {
                const Method chosen = method_of(method, settings);
                const Budget amount = budget_of(budget);
                const py::gil_scoped_release unlock;
                return context.compressed(chosen, amount);
            },
            py::arg("method") = "layer-defensive", py::arg("budget") = "20%", py::kw_only(),
            py::arg("settings") = py::dict())
        .def(
            "session",
            [](const Context& context, float temperature, std::uint64_t seed, int threads) {
                return Talk{context.session({{temperature, seed}, threads})};
            },
            py::kw_only(), py::arg("temperature") = 0.0f, py::arg("seed") = 0, py::arg("threads") = 0)
        .def_property_readonly("model", &Context::model)
        .def_property_readonly("tokens", &Context::tokens)
        .def_property_readonly("bytes", &Context::bytes)
        .def_property_readonly("method", [](const Context& context) { return context.info().method; })
        .def_property_readonly("budget", [](const Context& context) { return context.info().budget; })
        .def_property_readonly("note", [](const Context& context) { return context.report().note; })
        .def_property_readonly("ids",
                               [](const py::object& self) {
                                   const auto ids = self.cast<const Context&>().ids();
                                   py::array_t<int> view(py::ssize_t(ids.size()), ids.data(), self);
                                   view.attr("flags").attr("writeable") = false;
                                   return view;
                               })
        .def(
            "kept",
            [](const py::object& self, int layer, int kv_head) {
                const auto kept = self.cast<const Context&>().kept(layer, kv_head);
                py::array_t<std::uint32_t> view(py::ssize_t(kept.size()), kept.data(), self);
                view.attr("flags").attr("writeable") = false;
                return view;
            },
            py::arg("layer"), py::arg("kv_head"))
        .def_property_readonly("kept_counts", [](const Context& context) {
            const Model model = context.model();
            py::array_t<std::uint32_t> counts({model.layers(), model.kv_heads()});
            auto to = counts.mutable_unchecked<2>();
            for (int l = 0; l < model.layers(); ++l)
                for (int h = 0; h < model.kv_heads(); ++h)
                    to(l, h) = std::uint32_t(context.kept(l, h).size());
            return counts;
        });

    py::class_<Talk>(module, "Session")
        .def(
            "ask",
            [](Talk& talk, const std::string& question, int tokens) {
                ++talk.turn;
                return talk.session.ask(question, tokens).text;
            },
            py::arg("question"), py::arg("tokens") = 256, Unlocked())
        .def(
            "generate",
            [](const py::object& self, const std::string& question, int tokens) {
                auto& [session, turn] = self.cast<Talk&>();
                ++turn;
                {
                    const py::gil_scoped_release unlock;
                    session.begin(question);
                }
                return Pieces{self, turn, tokens};
            },
            py::arg("question"), py::arg("tokens") = 256)
        .def(
            "limit",
            [](Talk& talk, const py::object& budget, const std::string& method, const py::dict& settings) {
                const Method chosen = method_of(method, settings);
                const Budget amount = budget_of(budget);
                const py::gil_scoped_release unlock;
                talk.session.limit(chosen, amount);
            },
            py::arg("budget"), py::arg("method") = "layer-defensive", py::kw_only(),
            py::arg("settings") = py::dict())
        .def(
            "context", [](Talk& talk) { return talk.session.context(); }, Unlocked())
        .def_property_readonly("tokens", [](const Talk& talk) { return talk.session.tokens(); })
        .def_property_readonly("bytes", [](const Talk& talk) { return talk.session.bytes(); })
        .def_property_readonly("kept_mean", [](const Talk& talk) { return talk.session.kept_mean(); })
        .def_property_readonly("note", [](const Talk& talk) { return talk.session.note(); });

    py::class_<Pieces>(module, "Pieces")
        .def("__iter__", [](py::object self) { return self; })
        .def("__next__", &Pieces::next);

    module.def("methods", [] {
        py::list all;
        for (const NamedMethod& method : named_methods()) {
            py::dict one;
            one["name"] = method.name;
            one["parts"] = method.parts;
            one["source"] = method.source;
            all.append(one);
        }
        return all;
    });
}
