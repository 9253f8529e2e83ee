/* What the control socket says: the state of the engine as JSON, never a client's text. */
#ifndef BH_SUPERVISOR_CONTROL_ANSWER_H
#define BH_SUPERVISOR_CONTROL_ANSWER_H

#include <jansson.h>

#include "src/supervisor/engine.h"

/* bh_control_command - the command of one line, a static string; NULL: *error (static) says what is
   wrong with the line. */
const char *bh_control_command(const char *line, size_t len, const char **error);

/* bh_control_answer - carry out a command that bh_control_command returned, "verify" excepted. Never
   NULL but when memory runs out. */
json_t *bh_control_answer(struct bh_engine *engine, const char *command, uint64_t now_ns);

/* bh_control_error - {"ok": false, "error": text}. */
json_t *bh_control_error(const char *text);

#endif
