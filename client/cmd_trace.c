/* cmd_trace.c - `weir trace`: where the time of a request went (trace_view.h). */
#include "commands.h"

#include <stdlib.h>

#include "trace_view.h"

static struct {
    const char *connect;
    bool json;
} options;

size_t trace_flags(struct flag *ret_flags)
{
    ret_flags[0] =
        (struct flag){"json", 0, FLAG_SWITCH, &options.json, NULL, "print the broker's answer as JSON", 0, 0};
    return 1 + command_connect_flags(ret_flags + 1, &options.connect);
}

int cmd_trace(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_client *c = NULL;
    struct weir_error err;
    char *text = NULL;
    int n_args = flags_parse(flags, trace_flags(flags), "trace", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("trace");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args > 1)
        return command_usage("trace", "it takes one request, but there is \"%s\", too", argv[1]);
    enum exit_code code = command_open("trace", options.connect, &c);
    if (code != EXIT_DONE)
        return code;
    if (weir_trace_wait(c, n_args == 1 ? argv[0] : NULL, &text, &err) != WEIR_OK) {
        code = command_error("trace", &err);
        goto out;
    }
    json_t *root = json_loads(text, 0, NULL), *requests = json_object_get(root, "requests");
    if (options.json) {
        code = command_print_json(json_incref(root));
    } else {
        if (n_args == 1)
            trace_view_request(json_array_get(requests, 0), stdout);
        else
            trace_view_list(requests, stdout);
        code = command_flush("trace") ? EXIT_DONE : EXIT_FAILED;
    }
    json_decref(root);
out:
    free(text);
    weir_close(c);
    return code;
}
