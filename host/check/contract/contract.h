/* SPDX-License-Identifier: Apache-2.0
 *
 * contract.h: checks of a plugin's entry that several groups share (negotiation.c). */
#ifndef HOST_CHECK_CONTRACT_CONTRACT_H
#define HOST_CHECK_CONTRACT_CONTRACT_H

#include "host/check/check.h"

/* The entry of the file (NULL: the case has failed), and a host that drives these majors. */
attn_plugin_entry_fn check_find_entry(struct check_run *run);
attn_host_info check_host_of(const struct check_run *run, uint32_t oldest, uint32_t newest,
                             uint32_t minor);

#endif /* HOST_CHECK_CONTRACT_CONTRACT_H */
