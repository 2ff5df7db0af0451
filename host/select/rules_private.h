/* SPDX-License-Identifier: Apache-2.0
 *
 * rules_private.h: words of rules, for parsing and messages. Private to rules*.c.
 */
#ifndef HOST_SELECT_RULES_PRIVATE_H
#define HOST_SELECT_RULES_PRIVATE_H

#include "host/config/keys.h"
#include "host/select/rules.h"

/* RULE_MODEL_*, RULE_SOME_*, RULE_DRAFTS_* and their names; a NULL name ends each. */
extern const struct config_choice rule_model_words[], rule_some_words[], rule_draft_words[];

#endif /* HOST_SELECT_RULES_PRIVATE_H */
