/* list.h - lists of values on a command line: "fp32,bf16", "1K,4K", "1024-8192*2,10000".
 *
 * Commas separate the items.  An item may be a range of numbers (vfm_parse_size, num.h):
 *
 *	FIRST-LAST+STEP      FIRST, FIRST + STEP, ... up to LAST
 *	FIRST-LAST*FACTOR    FIRST, FIRST * FACTOR, ... up to LAST
 *	FIRST-LAST           FIRST, FIRST + 1, ... LAST
 *
 * The list includes LAST only if a step reaches it.  Brackets quote: "[a,b],c" has the items "a,b" and "c".  Any other
 * item stays as it is, unless it begins like a range: a number, then "-".
 */
#ifndef VFM_BASE_LIST_H
#define VFM_BASE_LIST_H

#include <stddef.h>

#include "base/err.h"

enum { VFM_LIST_MAX = 4096 }; /* items of a list, including those of its ranges */

/* `= {0}` before the first call. */
struct vfm_list {
	char **v; /* [n] owned */
	size_t n, cap;
};

/* Appends the items of `text`.  VFM_EUSAGE names the item: an empty item, an open bracket, a malformed or descending
 * range, or more than VFM_LIST_MAX items. */
int vfm_list_parse(struct vfm_list *l, const char *text, struct vfm_err *err);
void vfm_list_release(struct vfm_list *l);

#endif
