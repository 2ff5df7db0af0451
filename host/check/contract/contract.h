/* SPDX-License-Identifier: Apache-2.0
 *
 * contract.h: checks that stand in the table of one file and are written in another.
 */
#ifndef HOST_CHECK_CONTRACT_CONTRACT_H
#define HOST_CHECK_CONTRACT_CONTRACT_H

#include "host/check/check.h"

/* check/contract/negotiation.c: the entry of the file (NULL: the case has failed), and a host that drives these
 * majors. */
attn_plugin_entry_fn check_find_entry(struct check_run *run);
attn_host_info check_host_of(const struct check_run *run, uint32_t oldest, uint32_t newest,
                             uint32_t minor);

/* check/contract/leak.c, for check_life */
void check_leak_instances(struct check_run *run);
void check_leak_metadata(struct check_run *run);
void check_leak_create(struct check_run *run);
void check_leak_metadata_create(struct check_run *run);
void check_leak_unsupported(struct check_run *run);
void check_leak_layer_ids(struct check_run *run);

#endif /* HOST_CHECK_CONTRACT_CONTRACT_H */
