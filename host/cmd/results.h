/* SPDX-License-Identifier: Apache-2.0
 *
 * results.h: stdout for results alone, though plugins print.
 */
#ifndef HOST_CMD_RESULTS_H
#define HOST_CMD_RESULTS_H

/* From now on only output that this thread prints outside of calls of plugins goes to the original
 * stdout; all other output, and writes to descriptor 1, go to stderr. */
void results_begin(void);

/* Write out buffered output. results_end() reports a failure. */
void results_flush(void);

/* In a child of a process that is ending: this thread prints from now on. */
void results_adopt(void);

/* Write out the rest. 0, or -1 and errno if something could not be written. */
int results_end(void);

#endif /* HOST_CMD_RESULTS_H */
