/* SPDX-License-Identifier: Apache-2.0
 *
 * results.h: stdout for results alone, though plugins print.
 */
#ifndef HOST_CMD_RESULTS_H
#define HOST_CMD_RESULTS_H

/* From now on the stream `stdout` takes what this thread prints outside of calls of plugins to
 * where it went; all else that is printed, and what is written to descriptor 1, goes to stderr. */
void results_begin(void);

/* Write out what has been printed so far, where something is kept. A failure is results_end()'s. */
void results_flush(void);

/* In a child of a process that is ending: this thread prints from now on. */
void results_adopt(void);

/* Write out what is left. 0, or -1 and errno if something could not be written. */
int results_end(void);

#endif /* HOST_CMD_RESULTS_H */
