/* test_wire.c - requests: every field, every range, and an error that names what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/pack.h"
#include "wire.h"

static struct wire_message message;
static struct error err;

static enum status decode(struct span frame)
{
    memset(&err, 0, sizeof(err));
    return wire_decode_request(frame, &message, &err);
}

static struct wire_generate *generate(const char *json)
{
    enum status st = decode(pack_json(json));

    if (st != ST_OK)
        fail_msg("%s: %s", json, err.message);
    assert_int_equal(message.type, WIRE_GENERATE);
    return &message.generate;
}

static void done(void)
{
    wire_message_deinit(&message);
}

#define ASSERT_SPAN(span, text) assert_true(span_is((span), (text)))

static void a_short_request_gets_the_documented_defaults(void **state)
{
    struct wire_generate *g = generate("{'type':'generate','id':'a','prompt':'Hi'}");

    (void)state;
    ASSERT_SPAN(g->id, "a");
    ASSERT_SPAN(message.id, "a");
    assert_int_equal(g->prompt_kind, WORK_PROMPT_TEXT);
    ASSERT_SPAN(g->prompt, "Hi");
    assert_true(g->stream);
    assert_int_equal(g->n, 1);
    assert_int_equal(g->max_tokens, 0);
    assert_false(g->has_seed || g->has_temperature || g->raw || g->batch_class || g->cache_off || g->takeover_any);
    assert_true(g->sampling.temperature == 1 && g->sampling.top_p == 1 && g->sampling.repetition_penalty == 1);
    assert_true(g->sampling.min_p == 0 && g->sampling.top_k == 0 && g->sampling.presence_penalty == 0);
    assert_int_equal(g->sampling.logprobs, 0);
    assert_int_equal(g->deadline_ms, 0);
    assert_int_equal(g->model.n + g->salt.n + g->session.n + g->scope.n, 0);
    done();
}

static void every_field_arrives(void **state)
{
    struct wire_generate *g = generate(
        "{'type':'generate','id':'x','model':'m','adapter':'','prompt':'P','raw':true,'class':'batch','priority':'high','stream':false,"
        "'cache':'off','ignore_eos':true,'takeover':'any','deadline_ms':5000,'max_tokens':7,'n':3,'best_of':3,'echo':false,"
        "'seed':9223372036854775807,'temperature':0,'top_p':0.5,'top_k':40,'min_p':0.25,'repetition_penalty':1.5,"
        "'presence_penalty':-2,'frequency_penalty':2,'logit_bias':{'5':-100,'17':1.5},'stop':['a','bc'],'logprobs':true,"
        "'top_logprobs':4,'scope':'pool','salt':'s','session':'t','idempotency_key':'k','on_behalf_of':'u','ext':{'a':[1]},"
        "'resume':[{'choice':2,'ids':[1,2],'released_bytes':9},{'choice':0,'ids':[],'released_bytes':0}],'tools':null}");

    (void)state;
    ASSERT_SPAN(g->model, "m");
    assert_true(g->raw && g->batch_class && !g->stream && g->cache_off && g->ignore_eos && g->takeover_any);
    assert_int_equal(g->priority, PRIORITY_HIGH);
    assert_int_equal(g->deadline_ms, 5000);
    assert_int_equal(g->max_tokens, 7);
    assert_int_equal(g->n, 3);
    assert_true(g->has_seed && g->sampling.seed == INT64_MAX);
    assert_true(g->has_temperature && g->sampling.temperature == 0);
    assert_true(g->sampling.top_p == 0.5f && g->sampling.top_k == 40 && g->sampling.min_p == 0.25f);
    assert_true(g->sampling.repetition_penalty == 1.5f && g->sampling.presence_penalty == -2);
    assert_true(g->sampling.frequency_penalty == 2);
    assert_int_equal(g->bias.n, 2);
    assert_true(g->bias.at[0].token == 5 && g->bias.at[0].bias == -100 && g->bias.at[1].token == 17);
    assert_int_equal(g->n_stops, 2);
    ASSERT_SPAN(g->stops[1], "bc");
    assert_int_equal(g->sampling.logprobs, 1);
    assert_int_equal(g->sampling.n_logprobs, 4);
    ASSERT_SPAN(g->scope, "pool");
    ASSERT_SPAN(g->salt, "s");
    ASSERT_SPAN(g->session, "t");
    ASSERT_SPAN(g->idempotency_key, "k");
    ASSERT_SPAN(g->on_behalf_of, "u");
    assert_int_equal(g->n_resume, 2);
    assert_int_equal(g->resume[0].choice, 2);
    assert_int_equal(g->resume[0].ids[1], 2);
    assert_int_equal(g->resume[0].released_bytes, 9);
    assert_int_equal(g->resume[1].n_ids, 0);
    done();
}

static void prompts_come_as_text_ids_or_messages(void **state)
{
    struct wire_generate *g = generate("{'type':'generate','id':1,'prompt_ids':[0,2147483647]}");

    (void)state;
    assert_int_equal(g->prompt_kind, WORK_PROMPT_IDS);
    assert_int_equal(g->n_prompt_ids, 2);
    assert_int_equal(g->prompt_ids[1], INT32_MAX);
    ASSERT_SPAN(g->id, "1"); /* integers become text */
    done();

    g = generate("{'type':'generate','id':-7,'messages':[{'role':'system','content':''},{'content':'q','role':'user'}],"
                 "'chat_template':'chatml'}");
    assert_int_equal(g->prompt_kind, WORK_PROMPT_MESSAGES);
    assert_int_equal(g->n_messages, 2);
    ASSERT_SPAN(g->messages[1].role, "user");
    ASSERT_SPAN(g->messages[1].content, "q");
    ASSERT_SPAN(g->chat_template, "chatml");
    ASSERT_SPAN(g->id, "-7");
    done();

    g = generate("{'type':'generate','id':'e','prompt':''}"); /* empty is for the model to judge */
    assert_int_equal(g->prompt_kind, WORK_PROMPT_TEXT);
    assert_int_equal(g->prompt.n, 0);
    done();
}

static void aliases_mean_the_same(void **state)
{
    (void)state;
    assert_int_equal(generate("{'type':'generate','id':'a','prompt':'','max_completion_tokens':9}")->max_tokens, 9);
    done();
    assert_int_equal(generate("{'type':'generate','id':'a','prompt':'','max_completion_tokens':9,'max_tokens':9}")->max_tokens, 9);
    done();
    struct wire_generate *g = generate("{'type':'generate','id':'a','prompt':'','logprobs':3,'stop':'x'}");
    assert_int_equal(g->sampling.logprobs, 1);
    assert_int_equal(g->sampling.n_logprobs, 3);
    assert_int_equal(g->n_stops, 1);
    done();
    assert_int_equal(generate("{'type':'generate','id':'a','prompt':'','logprobs':0}")->sampling.logprobs, 1);
    done();
    assert_int_equal(generate("{'type':'generate','id':'a','prompt':'','logprobs':false}")->sampling.logprobs, 0);
    done();
}

static void null_is_the_same_as_absent(void **state)
{
    struct wire_generate *g = generate("{'type':'generate','id':'a','prompt':'x','messages':null,'top_p':null,'seed':null,"
                                       "'stop':null,'logit_bias':null,'response_format':null}");

    (void)state;
    assert_true(g->sampling.top_p == 1 && !g->has_seed && g->n_stops == 0 && g->bias.n == 0);
    done();
}

static void the_other_requests_arrive(void **state)
{
    static const struct { const char *json; enum wire_type type; } plain[] = {
        { "{'type':'cancel','id':'c'}", WIRE_CANCEL },
        { "{'type':'models','id':'c','ext':{}}", WIRE_MODELS },
        { "{'id':'c','type':'status'}", WIRE_STATUS },
    };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(decode(pack_json(plain[i].json)), ST_OK);
        assert_int_equal(message.type, plain[i].type);
        ASSERT_SPAN(message.id, "c");
        done();
    }
    assert_int_equal(decode(pack_json("{'type':'hello','client':'me/1'}")), ST_OK);
    assert_int_equal(message.type, WIRE_HELLO);
    ASSERT_SPAN(message.hello.client, "me/1");
    done();
    assert_int_equal(decode(pack_json("{'type':'hello'}")), ST_OK);
    done();
    assert_int_equal(decode(pack_json("{'type':'tokenize','id':'t','text':'abc','special':true,'model':'m'}")), ST_OK);
    assert_int_equal(message.type, WIRE_TOKENIZE);
    ASSERT_SPAN(message.tokenize.text, "abc");
    ASSERT_SPAN(message.tokenize.model, "m");
    assert_true(message.tokenize.special);
    ASSERT_SPAN(message.id, "t");
    done();
    assert_int_equal(decode(pack_json("{'type':'session_end','id':'t','session':'s1'}")), ST_OK);
    ASSERT_SPAN(message.session_end.session, "s1");
    done();
}

/* --- errors ----------------------------------------------------------------------------------- */

struct bad {
    const char *fields; /* added to a good generate request; with '!' first: the whole message */
    enum error_code code;
    const char *param;
    const char *says;   /* part of the message */
};

static const struct bad bad_requests[] = {
    /* ranges */
    { "'top_p':1.5", ERR_INVALID_PARAMETER, "top_p", "top_p is 1.5, must be over 0 and at most 1" },
    { "'top_p':0", ERR_INVALID_PARAMETER, "top_p", "is 0, must" },
    { "'top_p':1e-60", ERR_INVALID_PARAMETER, "top_p", "1e-60" },
    { "'temperature':-0.1", ERR_INVALID_PARAMETER, "temperature", "0 to 100" },
    { "'temperature':101", ERR_INVALID_PARAMETER, "temperature", "is 101" },
    { "'temperature':1e300", ERR_INVALID_PARAMETER, "temperature", "1e+300" },
    { "'min_p':-1", ERR_INVALID_PARAMETER, "min_p", "0 to 1" },
    { "'min_p':1.01", ERR_INVALID_PARAMETER, "min_p", "0 to 1" },
    { "'repetition_penalty':0", ERR_INVALID_PARAMETER, "repetition_penalty", "over 0" },
    { "'repetition_penalty':101", ERR_INVALID_PARAMETER, "repetition_penalty", "at most 100" },
    { "'presence_penalty':2.1", ERR_INVALID_PARAMETER, "presence_penalty", "-2 to 2" },
    { "'frequency_penalty':-2.1", ERR_INVALID_PARAMETER, "frequency_penalty", "-2 to 2" },
    { "'top_k':-1", ERR_INVALID_PARAMETER, "top_k", "is -1, must be 0 to" },
    { "'top_k':2147483648", ERR_INVALID_PARAMETER, "top_k", "2147483648" },
    { "'n':0", ERR_INVALID_PARAMETER, "n", "1 to 16" },
    { "'n':17", ERR_INVALID_PARAMETER, "n", "1 to 16" },
    { "'max_tokens':0", ERR_INVALID_PARAMETER, "max_tokens", "1 to 131072" },
    { "'max_tokens':131073", ERR_INVALID_PARAMETER, "max_tokens", "1 to 131072" },
    { "'deadline_ms':0", ERR_INVALID_PARAMETER, "deadline_ms", "1 to 604800000" },
    { "'deadline_ms':604800001", ERR_INVALID_PARAMETER, "deadline_ms", "604800001" },
    { "'seed':-1", ERR_INVALID_PARAMETER, "seed", "18446744073709551615" },
    { "'logprobs':21", ERR_INVALID_PARAMETER, "logprobs", "0 to 20" },
    { "'logprobs':true,'top_logprobs':21", ERR_INVALID_PARAMETER, "top_logprobs", "0 to 20" },
    { "'logit_bias':{'3':101}", ERR_INVALID_PARAMETER, "logit_bias.3", "-100 to 100" },
    { "'logit_bias':{'-3':1}", ERR_INVALID_PARAMETER, "logit_bias", "no token id" },
    { "'logit_bias':{'2147483648':1}", ERR_INVALID_PARAMETER, "logit_bias", "no token id" },
    { "'logit_bias':{'':1}", ERR_INVALID_PARAMETER, "logit_bias", "no token id" },
    { "'logit_bias':{'5':1,'05':1}", ERR_INVALID_REQUEST, "logit_bias.5", "twice" },
    { "'stop':''", ERR_INVALID_PARAMETER, "stop", "empty" },
    { "'stop':['a','']", ERR_INVALID_PARAMETER, "stop", "empty" },
    { "'stop':['1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16','17']", ERR_LIMIT_EXCEEDED, "stop", "16" },
    /* types: every field with one that is not its own */
    { "!{'type':'generate','id':[],'prompt':''}", ERR_INVALID_PARAMETER, "id", "a list" },
    { "!{'type':'generate','id':1.5,'prompt':''}", ERR_INVALID_PARAMETER, "id", "1.5" },
    { "!{'type':'generate','id':'','prompt':''}", ERR_INVALID_PARAMETER, "id", "empty" },
    { "!{'type':'generate','id':'a','prompt':['a']}", ERR_INVALID_PARAMETER, "prompt", "a list, must be a string" },
    { "!{'type':'generate','id':'a','prompt':5}", ERR_INVALID_PARAMETER, "prompt", "is 5" },
    { "!{'type':'generate','id':'a','prompt_ids':'x'}", ERR_INVALID_PARAMETER, "prompt_ids", "\"x\"" },
    { "!{'type':'generate','id':'a','prompt_ids':[]}", ERR_INVALID_PARAMETER, "prompt_ids", "empty" },
    { "!{'type':'generate','id':'a','prompt_ids':[1,-1]}", ERR_INVALID_PARAMETER, "prompt_ids", "-1 at index 1" },
    { "!{'type':'generate','id':'a','prompt_ids':[1,2,3.0]}", ERR_INVALID_PARAMETER, "prompt_ids", "3 at index 2" },
    { "!{'type':'generate','id':'a','prompt_ids':[4294967296]}", ERR_INVALID_PARAMETER, "prompt_ids", "4294967296" },
    { "!{'type':'generate','id':'a','messages':{}}", ERR_INVALID_PARAMETER, "messages", "a map" },
    { "!{'type':'generate','id':'a','messages':[]}", ERR_INVALID_PARAMETER, "messages", "empty" },
    { "!{'type':'generate','id':'a','messages':['x']}", ERR_INVALID_PARAMETER, "messages[0]", "must be a map" },
    { "!{'type':'generate','id':'a','messages':[{'role':'user','content':'x'},{'role':'user'}]}", ERR_INVALID_REQUEST,
      "messages[1].content", "missing" },
    { "!{'type':'generate','id':'a','messages':[{'role':'user','content':[{'type':'text','text':'x'}]}]}",
      ERR_UNSUPPORTED_PARAMETER, "messages[0].content", "parts" },
    { "!{'type':'generate','id':'a','messages':[{'role':7,'content':'x'}]}", ERR_INVALID_PARAMETER, "messages[0].role", "is 7" },
    { "!{'type':'generate','id':'a','messages':[{'role':'user','content':'x','name':'bob'}]}", ERR_UNSUPPORTED_PARAMETER,
      "messages[0].name", "not implemented" },
    { "!{'type':'generate','id':'a','messages':[{'role':'user','content':'x','colour':1}]}", ERR_UNKNOWN_FIELD,
      "messages[0].colour", "not a field of generate" },
    { "'model':5", ERR_INVALID_PARAMETER, "model", "a string" },
    { "'raw':1", ERR_INVALID_PARAMETER, "raw", "true or false" },
    { "'class':'urgent'", ERR_INVALID_PARAMETER, "class", "\"urgent\", must be \"interactive\" or \"batch\"" },
    { "'class':1", ERR_INVALID_PARAMETER, "class", "is 1" },
    { "'stream':'yes'", ERR_INVALID_PARAMETER, "stream", "\"yes\"" },
    { "'cache':false", ERR_INVALID_PARAMETER, "cache", "\"on\" or \"off\"" },
    { "'ignore_eos':{}", ERR_INVALID_PARAMETER, "ignore_eos", "a map" },
    { "'takeover':'never'", ERR_INVALID_PARAMETER, "takeover", "exact" },
    { "'deadline_ms':'5s'", ERR_INVALID_PARAMETER, "deadline_ms", "an integer" },
    { "'max_tokens':1.5", ERR_INVALID_PARAMETER, "max_tokens", "1.5, must be an integer" },
    { "'n':true", ERR_INVALID_PARAMETER, "n", "is true" },
    { "'seed':'x'", ERR_INVALID_PARAMETER, "seed", "\"x\"" },
    { "'temperature':'hot'", ERR_INVALID_PARAMETER, "temperature", "must be a number, 0 to 100" },
    { "'top_p':[]", ERR_INVALID_PARAMETER, "top_p", "a list" },
    { "'top_k':1.0", ERR_INVALID_PARAMETER, "top_k", "an integer" },
    { "'logit_bias':[]", ERR_INVALID_PARAMETER, "logit_bias", "a map from" },
    { "'logit_bias':{'1':'x'}", ERR_INVALID_PARAMETER, "logit_bias.1", "a number" },
    { "'stop':5", ERR_INVALID_PARAMETER, "stop", "list of strings" },
    { "'stop':[5]", ERR_INVALID_PARAMETER, "stop", "is 5" },
    { "'logprobs':'yes'", ERR_INVALID_PARAMETER, "logprobs", "true, false or 0 to 20" },
    { "'top_logprobs':true", ERR_INVALID_PARAMETER, "top_logprobs", "an integer" },
    { "'scope':'world'", ERR_INVALID_PARAMETER, "scope", "\"user\" or \"pool\"" },
    { "'salt':5", ERR_INVALID_PARAMETER, "salt", "string or binary" },
    { "'session':''", ERR_INVALID_PARAMETER, "session", "empty" },
    { "'idempotency_key':[]", ERR_INVALID_PARAMETER, "idempotency_key", "a list" },
    { "'on_behalf_of':1", ERR_INVALID_PARAMETER, "on_behalf_of", "is 1" },
    { "'resume':5", ERR_INVALID_PARAMETER, "resume", "is 5" },
    { "'ext':5", ERR_INVALID_PARAMETER, "ext", "a map" },
    /* what goes together */
    { "!{'type':'generate','id':'a'}", ERR_INVALID_REQUEST, "prompt", "none of prompt, prompt_ids and messages is given" },
    { "'prompt_ids':[1]", ERR_INVALID_REQUEST, "prompt", "two of" },
    { "'chat_template':'llama3'", ERR_INVALID_PARAMETER, "chat_template", "messages only" },
    { "!{'type':'generate','id':'a','prompt_ids':[1],'raw':true}", ERR_INVALID_PARAMETER, "raw", "prompt only" },
    { "'max_tokens':5,'max_completion_tokens':6", ERR_INVALID_PARAMETER, "max_completion_tokens", "6, but max_tokens is 5" },
    { "'top_logprobs':2", ERR_INVALID_PARAMETER, "top_logprobs", "needs logprobs" },
    { "'logprobs':3,'top_logprobs':2", ERR_INVALID_PARAMETER, "top_logprobs", "logprobs is 3" },
    { "'resume':[{'choice':0,'ids':[],'released_bytes':0}]", ERR_INVALID_REQUEST, "resume", "without the seed" },
    { "'seed':1,'resume':[{'choice':1,'ids':[],'released_bytes':0}]", ERR_INVALID_PARAMETER, "resume", "n is 1" },
    { "'n':2,'seed':1,'resume':[{'choice':1,'ids':[],'released_bytes':0},{'choice':1,'ids':[],'released_bytes':0}]",
      ERR_INVALID_REQUEST, "resume", "choice 1 twice" },
    { "'seed':1,'resume':[{'choice':0,'ids':['x'],'released_bytes':0}]", ERR_INVALID_PARAMETER, "resume[0].ids", "\"x\"" },
    { "'seed':1,'resume':[{'choice':0,'ids':[]}]", ERR_INVALID_REQUEST, "resume[0].released_bytes", "missing" },
    /* names */
    { "'max_token':5", ERR_UNKNOWN_FIELD, "max_token", "max_token is not a field of generate" },
    { "'x_mine':5", ERR_UNKNOWN_FIELD, "x_mine", "not a field" },
    { "'':5", ERR_UNKNOWN_FIELD, "", "not a field" },
    { "'tools':[]", ERR_UNSUPPORTED_PARAMETER, "tools", "not implemented" },
    { "'response_format':{'type':'json_object'}", ERR_UNSUPPORTED_PARAMETER, "response_format", "not implemented" },
    { "'guided_json':{}", ERR_UNSUPPORTED_PARAMETER, "guided_json", "not implemented" },
    { "'suffix':'x'", ERR_UNSUPPORTED_PARAMETER, "suffix", "not implemented" },
    { "'best_of':2", ERR_UNSUPPORTED_PARAMETER, "best_of", "only n (1)" },
    { "'echo':true", ERR_UNSUPPORTED_PARAMETER, "echo", "not implemented" },
    { "'adapter':'lora1'", ERR_UNSUPPORTED_PARAMETER, "adapter", "no adapters" },
    { "!{'id':'a','prompt':''}", ERR_INVALID_REQUEST, "type", "missing" },
    { "!{'type':5,'id':'a'}", ERR_INVALID_PARAMETER, "type", "is 5" },
    { "!{'type':'gnerate','id':'a'}", ERR_INVALID_PARAMETER, "type", "\"gnerate\"" },
    { "!{'type':'embed','id':'a'}", ERR_UNSUPPORTED_PARAMETER, "type", "\"embed\" is reserved" },
    { "!{'type':'token','id':'a'}", ERR_INVALID_PARAMETER, "type", "\"token\"" }, /* a reply is no request */
    { "!{'type':'generate','prompt':''}", ERR_INVALID_REQUEST, "id", "missing" },
    { "!{'type':'cancel'}", ERR_INVALID_REQUEST, "id", "missing" },
    { "!{'type':'cancel','id':'a','why':1}", ERR_UNKNOWN_FIELD, "why", "not a field of cancel" },
    { "!{'type':'tokenize','id':'a'}", ERR_INVALID_REQUEST, "text", "missing" },
    { "!{'type':'tokenize','id':'a','text':1}", ERR_INVALID_PARAMETER, "text", "is 1" },
    { "!{'type':'session_end','id':'a'}", ERR_INVALID_REQUEST, "session", "missing" },
    { "!{'type':'hello','client':1}", ERR_INVALID_PARAMETER, "client", "is 1" },
    { "!{'type':'admin','id':'a','worker':0}", ERR_INVALID_REQUEST, "verb", "missing" },
    { "!{'type':'admin','id':'a','worker':0,'verb':'kill'}", ERR_INVALID_PARAMETER, "verb", "\"kill\"" },
    { "!{'type':'admin','id':'a','verb':'pause'}", ERR_INVALID_REQUEST, "worker", "missing" },
    { "!{'type':'admin','id':'a','verb':'pause','worker':16}", ERR_INVALID_PARAMETER, "worker", "is 16" },
    { "!{'type':'admin','id':'a','verb':'add','worker':0}", ERR_INVALID_REQUEST, "worker", "add chooses it" },
    { "!{'type':'admin','id':'a','verb':'drain','worker':0,'model':'m'}", ERR_INVALID_REQUEST, "model", "goes with add only" },
};

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_requests) / sizeof(bad_requests[0]); i++) {
        const struct bad *b = &bad_requests[i];
        char json[1024];

        if (b->fields[0] == '!')
            snprintf(json, sizeof(json), "%s", b->fields + 1);
        else
            snprintf(json, sizeof(json), "{'type':'generate','id':'a','prompt':'p',%s}", b->fields);
        enum status st = decode(pack_json(json));
        if (st == ST_OK || err.code != b->code || strcmp(err.param, b->param) != 0 || strstr(err.message, b->says) == NULL)
            fail_msg("%s\n  got %s: %s (%s)", json, error_code_name(err.code), err.message, err.param);
        assert_int_equal(st, b->code == ERR_UNSUPPORTED_PARAMETER ? ST_UNSUPPORTED
                             : b->code == ERR_LIMIT_EXCEEDED      ? ST_LIMIT : ST_INVALID);
        assert_int_equal(message.type, WIRE_INVALID);
        assert_null(message.arena);
        if (strstr(json, "'id':'a'") != NULL)
            ASSERT_SPAN(message.id, "a"); /* so that the error finds its request */
    }
}

static void an_integer_id_survives_an_error(void **state)
{
    (void)state;
    assert_int_equal(decode(pack_json("{'type':'generate','id':-9223372036854775808,'prompt':'','top_p':7}")), ST_INVALID);
    ASSERT_SPAN(message.id, "-9223372036854775808");
}

/* --- limits ------------------------------------------------------------------------------------ */

/* A generate request whose field `key` is a string of n bytes; freed by the caller. */
static struct span with_string(const char *key, size_t n, char **ret_text)
{
    char *text = malloc(n + 128), *value = malloc(n + 1);

    memset(value, 'a', n);
    value[n] = '\0';
    snprintf(text, n + 128, "{'type':'generate',%s'%s':'%s'%s}", strcmp(key, "id") == 0 ? "" : "'id':'a',", key, value,
             strcmp(key, "prompt") == 0 ? "" : ",'prompt':''");
    free(value);
    *ret_text = text;
    return pack_json(text);
}

static void strings_have_the_length_that_is_documented(void **state)
{
    static const struct { const char *key; size_t max; } cases[] = {
        { "id", CLIENT_ID_BYTES_MAX }, { "prompt", PROMPT_BYTES_MAX },    { "model", NAME_BYTES_MAX - 1 },
        { "salt", SALT_BYTES_MAX },    { "session", NAME_BYTES_MAX - 1 }, { "stop", STOP_BYTES_MAX },
        { "idempotency_key", CLIENT_ID_BYTES_MAX },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text, limit[16];

        assert_int_equal(decode(with_string(cases[i].key, cases[i].max, &text)), ST_OK);
        done();
        free(text);
        assert_int_equal(decode(with_string(cases[i].key, cases[i].max + 1, &text)), ST_LIMIT);
        free(text);
        assert_int_equal(err.code, ERR_LIMIT_EXCEEDED);
        assert_string_equal(err.param, cases[i].key);
        snprintf(limit, sizeof(limit), "%zu", cases[i].max);
        assert_non_null(strstr(err.message, limit));
    }
}

/* {'type':..., 'id':'a', KEY: [n times `element`]} */
static struct span with_list(const char *key, size_t n, const char *element, char **ret_text)
{
    char *text = malloc(n * (strlen(element) + 1) + 128);
    size_t at = (size_t)snprintf(text, 128, "{'type':'generate','id':'a','%s':[", key);

    for (size_t i = 0; i < n; i++) {
        memcpy(text + at, element, strlen(element));
        at += strlen(element);
        text[at++] = i + 1 < n ? ',' : ' ';
    }
    memcpy(text + at, "]}", 3);
    *ret_text = text;
    return pack_json(text);
}

static void lists_have_the_length_that_is_documented(void **state)
{
    char *text;

    (void)state;
    assert_int_equal(decode(with_list("prompt_ids", PROMPT_IDS_MAX, "7", &text)), ST_OK);
    assert_int_equal(message.generate.n_prompt_ids, PROMPT_IDS_MAX);
    done();
    free(text);
    assert_int_equal(decode(with_list("prompt_ids", PROMPT_IDS_MAX + 1, "7", &text)), ST_LIMIT);
    free(text);
    assert_int_equal(decode(with_list("messages", MESSAGES_MAX, "{'role':'user','content':'a'}", &text)), ST_OK);
    done();
    free(text);
    assert_int_equal(decode(with_list("messages", MESSAGES_MAX + 1, "{'role':'user','content':'a'}", &text)), ST_LIMIT);
    free(text);

    /* All messages together. */
    char *half = malloc(PROMPT_BYTES_MAX / 2 + 64);
    size_t n = (size_t)snprintf(half, 64, "{'role':'user','content':'");
    memset(half + n, 'b', PROMPT_BYTES_MAX / 2);
    memcpy(half + n + PROMPT_BYTES_MAX / 2, "'}", 3);
    assert_int_equal(decode(with_list("messages", 2, half, &text)), ST_OK);
    done();
    free(text);
    assert_int_equal(decode(with_list("messages", 3, half, &text)), ST_LIMIT);
    assert_string_equal(err.param, "messages");
    free(text);
    free(half);
}

static void ext_may_hold_anything_up_to_its_limit(void **state)
{
    char *big = malloc(EXT_BYTES_MAX + 256);
    int n = snprintf(big, 128, "{'type':'generate','id':'a','ext':{'k':'");

    (void)state;
    memset(big + n, 'e', EXT_BYTES_MAX);
    /* packed: map header 1, "k" 2, str header 3, text */
    memcpy(big + n + EXT_BYTES_MAX - 6, "'},'prompt':''}", 16);
    assert_int_equal(decode(pack_json(big)), ST_OK);
    done();
    memset(big + n, 'e', EXT_BYTES_MAX);
    memcpy(big + n + EXT_BYTES_MAX - 5, "'},'prompt':''}", 16);
    assert_int_equal(decode(pack_json(big)), ST_LIMIT);
    assert_string_equal(err.param, "ext");
    free(big);
    generate("{'type':'generate','id':'a','ext':{'a':{'b':[{'c':[1,2,{}]}]},'tools':1},'prompt':''}");
    done();
}

static void the_list_of_unsupported_parameters_is_found_by_name(void **state)
{
    static const char *const known[] = { "tools",       "tool_choice", "functions",  "response_format",      "suffix",
                                         "echo",        "guided_json", "guided_x",   "json_schema",          "grammar",
                                         "user",        "store",       "modalities", "audio",                "xtc_threshold",
                                         "mirostat",    "mirostat_tau", "typical_p", "tfs_z",                "stream_options",
                                         "adapters",    "web_search_options",        "parallel_tool_calls",  "service_tier",
                                         "prompt_logprobs", "reasoning_effort",      "logit_processors" };
    static const char *const not_known[] = { "", "temperature", "tool", "toolss", "zzz", "a", "guided", "prompt", "x_tools" };

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!wire_is_unsupported_parameter(span_str(known[i])))
            fail_msg("%s is not in the list", known[i]);
    for (size_t i = 0; i < sizeof(not_known) / sizeof(not_known[0]); i++)
        if (wire_is_unsupported_parameter(span_str(not_known[i])))
            fail_msg("%s is in the list", not_known[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_request_gets_the_documented_defaults),
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(prompts_come_as_text_ids_or_messages),
        cmocka_unit_test(aliases_mean_the_same),
        cmocka_unit_test(null_is_the_same_as_absent),
        cmocka_unit_test(the_other_requests_arrive),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(an_integer_id_survives_an_error),
        cmocka_unit_test(strings_have_the_length_that_is_documented),
        cmocka_unit_test(lists_have_the_length_that_is_documented),
        cmocka_unit_test(ext_may_hold_anything_up_to_its_limit),
        cmocka_unit_test(the_list_of_unsupported_parameters_is_found_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
