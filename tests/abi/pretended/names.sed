# SPDX-License-Identifier: Apache-2.0
#
# names.sed: headers of another major with names of their own, attn1_ and ATTN1_, so that an adapter
# can include both.
s/\battn_/attn1_/g
s/\bATTN_/ATTN1_/g
