/* holdfast's C interface: read a document once, compress its KV cache, ask it many times.
 *
 * Calls that can fail return a holdfast_status; holdfast_error() then says what was wrong and what to do about
 * it, and results (the last arguments) are left alone. No exception leaves a call. Objects are freed by their
 * _free call, in any order: a context keeps its model alive, a session its context. NULL may be freed.
 *
 * Threads: models and contexts can be used by any number of threads at once. A session belongs to one thread
 * at a time; different sessions, of one context too, run in different threads. holdfast_error() is each
 * thread's own. Freeing an object while another thread uses it is an error.
 *
 * Text is UTF-8; what isn't is read as bytes. Positions and counts are in tokens, sizes in bytes. A method and a
 * budget are written as on the command line: "layer-defensive"; "20%" of the context, or "1024" tokens per KV
 * head on average. NULL stands for these two.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

#include <stddef.h>
#include <stdint.h>

#include "holdfast/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct holdfast_model holdfast_model;
typedef struct holdfast_context holdfast_context;
typedef struct holdfast_session holdfast_session;

typedef enum holdfast_status {
    HOLDFAST_OK = 0,
    HOLDFAST_FAILURE = 1,      /* the request is sound, but carrying it out failed */
    HOLDFAST_USAGE = 2,        /* the request can't be meant as written */
    HOLDFAST_INTERRUPTED = 130 /* a callback asked to stop */
} holdfast_status;

/* Of the library: "1.2.3". */
HOLDFAST_API const char *holdfast_version(void);
/* What the calling thread's last failed call says; valid until its next one. "" before any. */
HOLDFAST_API const char *holdfast_error(void);

/* ---- Models */

typedef struct holdfast_model_options {
    uint32_t context_length;   /* tokens; 0: the model's own */
    const char *rope_scaling;  /* "none", "linear", "yarn"; NULL: the model's own */
    float rope_scale;          /* 0: the model's own, or what the context length needs */
    int threads;               /* 0: all processors */
    int (*cancelled)(void *);  /* asked often, by whichever thread computes: not 0 stops; or NULL */
    void *cancelled_data;
} holdfast_model_options;

/* path: a GGUF file, whose weights are mapped. options: NULL for what is 0 in them. */
HOLDFAST_API holdfast_status holdfast_model_open(const char *path, const holdfast_model_options *options,
                                                 holdfast_model **model);
HOLDFAST_API void holdfast_model_free(holdfast_model *model);
HOLDFAST_API const char *holdfast_model_name(const holdfast_model *model); /* valid while the model is */
HOLDFAST_API uint32_t holdfast_model_context_length(const holdfast_model *model);
HOLDFAST_API int holdfast_model_layers(const holdfast_model *model);
HOLDFAST_API int holdfast_model_kv_heads(const holdfast_model *model);

/* ---- Contexts: they don't change */

/* share: of the reading, from 0 to 1. Not 0 stops it: HOLDFAST_INTERRUPTED. */
typedef int (*holdfast_progress)(double share, void *data);

/* Reads a document of so many bytes. settings: `count` parameters of the method, "window=64" and so on. */
HOLDFAST_API holdfast_status holdfast_compress(const holdfast_model *model, const char *document, size_t bytes,
                                               const char *method, const char *const *settings, size_t count,
                                               const char *budget, holdfast_progress progress,
                                               void *progress_data, holdfast_context **context);
/* A file of holdfast_context_save() or `holdfast compress`. */
HOLDFAST_API holdfast_status holdfast_context_load(const holdfast_model *model, const char *path,
                                                   holdfast_context **context);
/* kv_type: "f16", or "q8_0" for about half the size; NULL: f16. The file appears whole or not at all. */
HOLDFAST_API holdfast_status holdfast_context_save(const holdfast_context *context, const char *path,
                                                   const char *kv_type);
/* Compresses once more, into a context of its own. */
HOLDFAST_API holdfast_status holdfast_context_compress(const holdfast_context *context, const char *method,
                                                       const char *budget, holdfast_context **compressed);
HOLDFAST_API void holdfast_context_free(holdfast_context *context);
HOLDFAST_API uint32_t holdfast_context_tokens(const holdfast_context *context);
HOLDFAST_API size_t holdfast_context_bytes(const holdfast_context *context); /* of kept keys and values */
/* Positions of the tokens that a head kept, rising; valid while the context is. */
HOLDFAST_API holdfast_status holdfast_context_kept(const holdfast_context *context, int layer, int kv_head,
                                                   const uint32_t **positions, size_t *count);

/* ---- Sessions: conversations on a context, whose memory they share */

typedef struct holdfast_session_options {
    float temperature; /* 0: the most likely token */
    uint64_t seed;
    int threads; /* of its own; 0: takes turns with the model's */
} holdfast_session_options;

/* Gets an answer's text as it comes, whole characters, ended by a 0. Not 0 ends the answer. */
typedef int (*holdfast_on_text)(const char *text, void *data);

/* options: NULL for what is 0 in them. */
HOLDFAST_API holdfast_status holdfast_session_open(const holdfast_context *context,
                                                   const holdfast_session_options *options,
                                                   holdfast_session **session);
/* A question, behind the turns before. answer: the whole text, valid until the session's next call; or NULL.
 * on_text: or NULL. */
HOLDFAST_API holdfast_status holdfast_session_ask(holdfast_session *session, const char *question,
                                                  int most_tokens, holdfast_on_text on_text, void *on_text_data,
                                                  const char **answer);
/* From now on the cache stays within the budget, but for one page (32 tokens) a head. "100%" lifts it. */
HOLDFAST_API holdfast_status holdfast_session_limit(holdfast_session *session, const char *method,
                                                    const char *budget);
/* All of it as a context: to be saved, or asked by sessions that part here. */
HOLDFAST_API holdfast_status holdfast_session_context(holdfast_session *session, holdfast_context **context);
HOLDFAST_API uint32_t holdfast_session_tokens(const holdfast_session *session);
HOLDFAST_API size_t holdfast_session_bytes(const holdfast_session *session);
HOLDFAST_API void holdfast_session_free(holdfast_session *session);

#ifdef __cplusplus
}
#endif

#endif
