/* Answers a question about a compressed context, word by word, and says how much each layer kept.
 *   embed-c MODEL.gguf CONTEXT.hfkv QUESTION
 */
#include <holdfast/holdfast.h>
#include <stdio.h>

static int print_text(const char *text, void *data) {
    (void)data;
    fputs(text, stdout);
    fflush(stdout);
    return 0;
}

static int failed(holdfast_status status) {
    if (status != HOLDFAST_OK) fprintf(stderr, "embed-c: %s\n", holdfast_error());
    return status != HOLDFAST_OK;
}

int main(int argc, char **argv) {
    holdfast_model *model = NULL;
    holdfast_context *context = NULL;
    holdfast_session *session = NULL;
    int status = 1;
    if (argc != 4) {
        fprintf(stderr, "usage: embed-c MODEL.gguf CONTEXT.hfkv QUESTION\n");
        return 2;
    }
    if (failed(holdfast_model_open(argv[1], NULL, &model))) goto end;
    if (failed(holdfast_context_load(model, argv[2], &context))) goto end;
    printf("%s kept of %u tokens by layer:", holdfast_model_name(model), holdfast_context_tokens(context));
    for (int layer = 0; layer < holdfast_model_layers(model); ++layer) {
        const uint32_t *positions;
        size_t kept, sum = 0;
        for (int head = 0; head < holdfast_model_kv_heads(model); ++head) {
            if (failed(holdfast_context_kept(context, layer, head, &positions, &kept))) goto end;
            sum += kept;
        }
        printf(" %zu", sum);
    }
    printf("\n");
    if (failed(holdfast_session_open(context, NULL, &session))) goto end;
    if (failed(holdfast_session_ask(session, argv[3], 32, print_text, NULL, NULL))) goto end;
    printf("\n");
    status = 0;
end:
    holdfast_session_free(session);
    holdfast_context_free(context);
    holdfast_model_free(model);
    return status;
}
