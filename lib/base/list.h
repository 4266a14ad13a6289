/* list.h - lists of values on a command line: "fp32,bf16", "1K,4K", "1024-8192*2,10000".
 *
 * Items are separated by commas.  Three forms of an item are ranges, whose numbers are those of vfm_parse_size (num.h):
 *
 *	FIRST-LAST+STEP      FIRST, FIRST + STEP, ... up to LAST
 *	FIRST-LAST*FACTOR    FIRST, FIRST * FACTOR, ... up to LAST
 *	FIRST-LAST           FIRST, FIRST + 1, ... LAST
 *
 * LAST is a value only if the steps meet it.  An item in brackets is the text between them, commas and ranges
 * included: "[a,b],c" has the items "a,b" and "c".  Any other item is taken as it is, if it does not begin as a range
 * does: a number, then "-".
 */
#ifndef VFM_BASE_LIST_H
#define VFM_BASE_LIST_H

#include <stddef.h>

#include "base/err.h"

enum { VFM_LIST_MAX = 4096 }; /* items of a list, those of its ranges included */

/* `= {0}` before the first call. */
struct vfm_list {
	char **v; /* [n] owned */
	size_t n, cap;
};

/* Appends the items of `text`.  VFM_EUSAGE: an empty item, an open bracket, a range that is malformed or runs
 * backwards, more than VFM_LIST_MAX items; the message names the item. */
int vfm_list_parse(struct vfm_list *l, const char *text, struct vfm_err *err);
void vfm_list_release(struct vfm_list *l);

#endif
