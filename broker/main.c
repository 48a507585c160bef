/* main.c - weir-broker: read the options, open the socket, run. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "broker.h"
#include "confine.h"
#include "machine.h"
#include "version.h"

enum { EXIT_USAGE = 2 };

static int complain(const struct error *err, int code)
{
    fprintf(stderr, "weir-broker: %s: %s%s%s%s\n", error_code_name(err->code), err->message, err->param[0] ? " (" : "", err->param,
            err->param[0] ? ")" : "");
    return code;
}

int main(int argc, char **argv)
{
    static struct options options;
    struct config *config = NULL;
    struct broker *broker = NULL;
    struct error err = { 0 };

    enum status st = config_load(options_keys, options_n_keys, "broker", argc, argv, &config, &err);
    if (st != ST_OK)
        return complain(&err, EXIT_USAGE);
    if (config_help_wanted(config)) {
        config_print_help(stdout, "weir-broker [OPTIONS] --model FILE",
                          "Keeps a pool of inference workers and shares it out among its clients.", options_keys, options_n_keys);
        config_free(config);
        return 0;
    }
    if (config_version_wanted(config)) {
        printf("weir-broker %s (%s)\n", version_text(), version_build_id());
        config_free(config);
        return 0;
    }
    st = options_of_config(config, &options, &err); /* takes config */
    if (st != ST_OK)
        return complain(&err, EXIT_USAGE);
    log_init("broker", options.log_level);
    prctl(PR_SET_DUMPABLE, 0); /* prompts of everybody are in this memory */
    machine_short_turns(false); /* of libzmq's threads too */
    st = broker_new(&options, &broker, &err);
    machine_short_turns(true); /* but not of workers */
    if (st == ST_OK)
        confine_broker(options.core_dumps);
    int code = st == ST_OK ? broker_run(broker) : complain(&err, EXIT_FAILURE);
    broker_free(broker);
    options_deinit(&options);
    return code;
}
