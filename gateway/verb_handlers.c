/* verb_handlers.c - which handler runs which verb. */
#include "verb_job.h"

const struct verb_handler *verb_handler_of(enum verb_id id)
{
    static const struct verb_handler *const table[VERB_COUNT] = {
        [VERB_HOME] = &verb_home_handler,      [VERB_HELP] = &verb_help_handler,
        [VERB_ASK] = &verb_ask_handler,        [VERB_SUBMIT] = &verb_submit_handler,
        [VERB_RUN] = &verb_run_handler,        [VERB_STATUS] = &verb_status_handler,
        [VERB_LIST] = &verb_list_handler,      [VERB_WATCH] = &verb_watch_handler,
        [VERB_WAIT] = &verb_wait_handler,      [VERB_RESULTS] = &verb_results_handler,
        [VERB_ERRORS] = &verb_results_handler, [VERB_CANCEL] = &verb_change_handler,
        [VERB_RETRY] = &verb_change_handler,   [VERB_RELEASE] = &verb_change_handler,
        [VERB_USAGE] = &verb_usage_handler,    [VERB_KEYS] = &verb_keys_handler,
        [VERB_DELETE] = &verb_change_handler,  [VERB_MODELS] = &verb_pool_handler,
        [VERB_POOL] = &verb_pool_handler,      [VERB_TOKENIZE] = &verb_tokenize_handler,
        [VERB_WHOAMI] = &verb_whoami_handler,  [VERB_VERSION] = &verb_version_handler,
        [VERB_CHAT] = &verb_chat_handler,      [VERB_TOP] = &verb_top_handler,
        [VERB_TRACE] = &verb_trace_handler,    [VERB_VERIFY] = &verb_verify_handler,
    };

    return table[id];
}
