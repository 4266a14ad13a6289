/* num.h - strict parsing of decimal numbers, without blanks, "+" or trailing characters.
 *
 * Errors are VFM_EUSAGE: "expected an integer, got '12x'"; the caller adds the option or key with vfm_err_context.  A
 * failed call leaves *out unchanged.
 */
#ifndef VFM_BASE_NUM_H
#define VFM_BASE_NUM_H

#include <stdint.h>

#include "base/err.h"

int vfm_parse_i64(const char *s, int64_t min, int64_t max, int64_t *out, struct vfm_err *err);
int vfm_parse_size(const char *s, int64_t *out, struct vfm_err *err); /* >= 0; suffix K, M, G, T (powers of 1024) */
int vfm_parse_f64(const char *s, double *out, struct vfm_err *err);   /* finite */

#endif
