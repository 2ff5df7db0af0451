/* SPDX-License-Identifier: Apache-2.0
 *
 * suite_case.c: one case: from the reply of the sandbox to a result.
 */
#include "host/check/suite/suite.h"

#include <stdlib.h>
#include <string.h>

#include "host/check/suite/json.h"

cJSON *suite_question(const char *ask, const char *name, const char *value, const char *device)
{
    cJSON *question = cJSON_CreateObject();
    cJSON_AddStringToObject(question, "ask", ask);
    if (name)
        cJSON_AddStringToObject(question, name, value);
    if (device)
        cJSON_AddStringToObject(question, "device", device);
    return question;
}

enum check_code suite_code_of(enum sandbox_end end)
{
    return end == SANDBOX_CRASHED ? CHECK_CRASH : CHECK_TIMEOUT;
}

void suite_note_end(struct suite *suite, const struct sandbox_reply *reply)
{
    suite->late |= reply->end == SANDBOX_LATE;
    suite->stopped |= reply->end == SANDBOX_INTERRUPTED || reply->end == SANDBOX_BROKEN;
    if (reply->end != SANDBOX_BROKEN)
        return;
    suite->outcome = CHECK_BROKEN;
    snprintf(suite->why, sizeof suite->why, "%s", reply->text);
}

static void set_text(char **text, const char *value)
{
    free(*text);
    *text = strdup(value);
}

void suite_result_finish(struct check_result *result)
{
    free(result->text);
    free(result->trail);
    free(result->output);
}

/* ---- Replies --------------------------------------------------------------------------------- */

static void take_answer(struct suite *suite, const struct suite_case *what,
                        const struct sandbox_reply *reply, struct check_result *result)
{
    enum check_code code = check_code_of(json_text(reply->answer, "code"));
    if (json_number(reply->answer, "outcome") != CHECK_GOOD) {
        result->code = CHECK_FAIL;
        set_text(&result->text, json_text(reply->answer, "why"));
        return;
    }
    result->code = code < CHECK_CODES ? code : CHECK_FAIL;
    set_text(&result->text,
             code < CHECK_CODES ? json_text(reply->answer, "text") : "the answer is malformed");
    result->ns = (int64_t)json_number(reply->answer, "ns");
    surroundings_case(suite, what->backend, result->id, reply);
}

static void take_end(const struct sandbox_reply *reply, struct check_result *result)
{
    result->code = suite_code_of(reply->end);
    result->ns = reply->ns;
    set_text(&result->text, reply->text);
    set_text(&result->trail, reply->trail);
}

static void ask_to_run(struct suite *suite, const struct suite_case *what, const char *id,
                       struct sandbox_reply *reply)
{
    char seed[24];
    cJSON *question = suite_question("run", "id", id, what->device);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)what->seed);
    cJSON_AddStringToObject(question, "seed", seed);
    cJSON_AddNumberToObject(question, "without", what->without);
    sandbox_ask(&suite->sandbox, question, reply);
}

/* It crashed in a child that had run other cases: is it at fault itself? */
static void run_alone(struct suite *suite, const struct suite_case *what,
                      struct check_result *result)
{
    strbuf text;
    struct sandbox_reply reply;
    sandbox_kill(&suite->sandbox);
    ask_to_run(suite, what, result->id, &reply);
    if (reply.end == SANDBOX_CRASHED || reply.end == SANDBOX_HUNG) {
        take_end(&reply, result);
    } else if (reply.end == SANDBOX_ANSWERED) {
        strbuf_init(&text);
        strbuf_appendf(&text, "%s; run alone, it is %s, so what ran before it there broke it",
                       result->text, json_text(reply.answer, "code"));
        set_text(&result->text, strbuf_text(&text));
        strbuf_finish(&text);
    }
    sandbox_kill(&suite->sandbox); /* the next case must not inherit its state, either */
    sandbox_reply_finish(&reply);
}

/* The device is lost for this process. */
static void leave_lost(struct suite *suite, const struct sandbox_reply *reply)
{
    if (reply->end == SANDBOX_ANSWERED && json_true(reply->answer, "lost"))
        sandbox_kill(&suite->sandbox);
}

void suite_run_case(struct suite *suite, const struct suite_case *what, struct check_result *result)
{
    struct sandbox_reply reply;
    memset(result, 0, sizeof *result);
    result->check = what->check;
    result->backend = (char *)what->backend;
    result->seed = what->seed;
    case_id_write(result->id, what->backend, what->check, what->index);
    set_text(&result->text, "");
    set_text(&result->trail, "");
    ask_to_run(suite, what, result->id, &reply);
    if (reply.output.length && reply.end != SANDBOX_ANSWERED)
        set_text(&result->output, strbuf_text(&reply.output));
    if (reply.end == SANDBOX_ANSWERED)
        take_answer(suite, what, &reply, result);
    else
        take_end(&reply, result);
    suite_note_end(suite, &reply);
    if (reply.end == SANDBOX_CRASHED && !reply.child_is_new)
        run_alone(suite, what, result);
    leave_lost(suite, &reply);
    sandbox_reply_finish(&reply);
}
