/* SPDX-License-Identifier: Apache-2.0
 *
 * words.h: the words of the ABI's numbers, for plugins in languages that do not see C's macros.
 */
#ifndef HOST_CMD_WORDS_H
#define HOST_CMD_WORDS_H

/* Print a line for each number that has a word: set, value, constant, word, separated by tabs. */
void words_print(void);

#endif /* HOST_CMD_WORDS_H */
