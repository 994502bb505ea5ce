// The C interface: the C++ one behind opaque handles, exceptions turned into statuses.
#include <new>
#include <utility>

#include "holdfast/holdfast.h"
#include "holdfast/holdfast.hpp"

struct holdfast_model {
    holdfast::Model model;
};
struct holdfast_context {
    holdfast::Context context;
};
struct holdfast_session {
    holdfast::Session session;
    std::string answer;
};

namespace {

thread_local std::string last_error;

template <class Call>
holdfast_status guarded(Call&& call) noexcept {
    try {
        call();
        return HOLDFAST_OK;
    } catch (const holdfast::Error& error) {
        last_error = error.what();
        switch (error.kind) {
            case holdfast::Error::Kind::usage:
                return HOLDFAST_USAGE;
            case holdfast::Error::Kind::interrupted:
                return HOLDFAST_INTERRUPTED;
            case holdfast::Error::Kind::failure:
                break;
        }
    } catch (const std::bad_alloc&) {
        last_error = "out of memory";
    } catch (const std::exception& error) {
        last_error = error.what();
    } catch (...) {  // of a callback
        last_error = "a callback threw something that is no exception";
    }
    return HOLDFAST_FAILURE;
}

template <class T>
T& given(T* argument, const char* name) {
    if (argument == nullptr)
        throw holdfast::Error(std::string(name) + " is NULL", holdfast::Error::Kind::usage);
    return *argument;
}

holdfast::Method method_of(const char* name, const std::vector<std::string>& settings = {}) {
    return holdfast::Method::parse(name == nullptr ? "layer-defensive" : name, settings);
}
holdfast::Budget budget_of(const char* text) {
    return holdfast::Budget::parse(text == nullptr ? "20%" : text);
}

}  // namespace

const char* holdfast_version(void) {
    return holdfast::version();
}

const char* holdfast_error(void) {
    return last_error.c_str();
}

holdfast_status holdfast_model_open(const char* path, const holdfast_model_options* options,
                                    holdfast_model** model) {
    return guarded([&] {
        const holdfast_model_options o = options == nullptr ? holdfast_model_options{} : *options;
        holdfast::ModelOptions how;
        how.context_length = o.context_length;
        if (o.rope_scaling != nullptr) how.rope_scaling = o.rope_scaling;
        how.rope_scale = o.rope_scale;
        std::function<bool()> cancelled;
        if (o.cancelled != nullptr) cancelled = [o] { return o.cancelled(o.cancelled_data) != 0; };
        given(model, "model");
        *model =
            new holdfast_model{holdfast::Model(&given(path, "path"), how, o.threads, std::move(cancelled))};
    });
}

void holdfast_model_free(holdfast_model* model) {
    delete model;
}
const char* holdfast_model_name(const holdfast_model* model) {
    return model->model.name().c_str();
}
uint32_t holdfast_model_context_length(const holdfast_model* model) {
    return model->model.context_length();
}
int holdfast_model_layers(const holdfast_model* model) {
    return model->model.layers();
}
int holdfast_model_kv_heads(const holdfast_model* model) {
    return model->model.kv_heads();
}

holdfast_status holdfast_compress(const holdfast_model* model, const char* document, size_t bytes,
                                  const char* method, const char* const* settings, size_t count,
                                  const char* budget, holdfast_progress progress, void* progress_data,
                                  holdfast_context** context) {
    return guarded([&] {
        given(context, "context");
        std::vector<std::string> parameters;
        if (count > 0) given(settings, "settings");
        for (size_t i = 0; i < count; ++i) parameters.emplace_back(&given(settings[i], "a setting"));
        holdfast::CompressOptions how;
        if (progress != nullptr)
            how.progress = [&](const holdfast::ReadProgress& p) {
                return progress(p.share(), progress_data) == 0;
            };
        const std::string text = bytes == 0 ? "" : std::string(&given(document, "document"), bytes);
        *context = new holdfast_context{
            given(model, "model")
                .model.compress(text, method_of(method, parameters), budget_of(budget), how)};
    });
}

holdfast_status holdfast_context_load(const holdfast_model* model, const char* path,
                                      holdfast_context** context) {
    return guarded([&] {
        given(context, "context");
        *context = new holdfast_context{given(model, "model").model.load(&given(path, "path"))};
    });
}

holdfast_status holdfast_context_save(const holdfast_context* context, const char* path,
                                      const char* kv_type) {
    return guarded([&] {
        given(context, "context")
            .context.save(&given(path, "path"),
                          holdfast::parse_kv_type(kv_type == nullptr ? "f16" : kv_type));
    });
}

holdfast_status holdfast_context_compress(const holdfast_context* context, const char* method,
                                          const char* budget, holdfast_context** compressed) {
    return guarded([&] {
        given(compressed, "compressed");
        *compressed = new holdfast_context{
            given(context, "context").context.compressed(method_of(method), budget_of(budget))};
    });
}

void holdfast_context_free(holdfast_context* context) {
    delete context;
}
uint32_t holdfast_context_tokens(const holdfast_context* context) {
    return context->context.tokens();
}
size_t holdfast_context_bytes(const holdfast_context* context) {
    return context->context.bytes();
}

holdfast_status holdfast_context_kept(const holdfast_context* context, int layer, int kv_head,
                                      const uint32_t** positions, size_t* count) {
    return guarded([&] {
        const auto kept = given(context, "context").context.kept(layer, kv_head);
        given(count, "count");
        given(positions, "positions") = kept.data();
        *count = kept.size();
    });
}

holdfast_status holdfast_session_open(const holdfast_context* context,
                                      const holdfast_session_options* options, holdfast_session** session) {
    return guarded([&] {
        holdfast::SessionOptions how;
        if (options != nullptr) how = {{options->temperature, options->seed}, options->threads};
        given(session, "session");
        *session = new holdfast_session{given(context, "context").context.session(how), {}};
    });
}

holdfast_status holdfast_session_ask(holdfast_session* session, const char* question, int most_tokens,
                                     holdfast_on_text on_text, void* on_text_data, const char** answer) {
    return guarded([&] {
        holdfast_session& s = given(session, "session");
        std::function<bool(std::string_view)> emit;
        if (on_text != nullptr)
            emit = [&](std::string_view text) {
                return on_text(std::string(text).c_str(), on_text_data) == 0;
            };
        s.answer = s.session.ask(&given(question, "question"), most_tokens, emit).text;
        if (answer != nullptr) *answer = s.answer.c_str();
    });
}

holdfast_status holdfast_session_limit(holdfast_session* session, const char* method, const char* budget) {
    return guarded([&] { given(session, "session").session.limit(method_of(method), budget_of(budget)); });
}

holdfast_status holdfast_session_context(holdfast_session* session, holdfast_context** context) {
    return guarded([&] {
        given(context, "context");
        *context = new holdfast_context{given(session, "session").session.context()};
    });
}

uint32_t holdfast_session_tokens(const holdfast_session* session) {
    return session->session.tokens();
}
size_t holdfast_session_bytes(const holdfast_session* session) {
    return session->session.bytes();
}
void holdfast_session_free(holdfast_session* session) {
    delete session;
}
