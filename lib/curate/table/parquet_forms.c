/* parquet_forms.c - what the values of a leaf mean (parquet-format, LogicalTypes.md). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "curate/table/parquet_impl.h"

enum { LIMBS = 9, LIMB = 1000000000, DIGITS = 9 * LIMBS, MAX_BYTES = 32 };

enum { EXACT_DIGITS = 15, INTEGER_DIGITS = 18 }; /* of a double, and of 63 bits */

static int convert_unsigned(struct vfm_cell *cell, struct vfm_err *err)
{
	if (cell->i < 0)
		return vfm_fail(err, VFM_EINPUT, "the value %" PRIu64 " exceeds 63 bits", (uint64_t)cell->i);
	return 0;
}

/* ---- decimals ---- */

/* Sets magnitude [MAX_BYTES], the highest byte first, of a number in two's complement.  Returns whether it is
 * negative. */
static bool split_sign(const uint8_t *b, size_t n, uint8_t magnitude[MAX_BYTES])
{
	bool negative = n && b[0] & 0x80;
	unsigned carry = 1;

	memset(magnitude, 0, MAX_BYTES);
	memcpy(magnitude + MAX_BYTES - n, b, n);
	for (size_t i = MAX_BYTES; negative && i-- > MAX_BYTES - n;) {
		carry += (uint8_t)~magnitude[i];
		magnitude[i] = (uint8_t)carry;
		carry >>= 8;
	}
	return negative;
}

/* Writes the decimal digits of a magnitude, which becomes 0, without leading zeros: "" for 0.  Returns their number. */
static int write_digits(uint8_t magnitude[MAX_BYTES], char digits[DIGITS + 1])
{
	char all[DIGITS + 1];
	int first = 0;

	for (int limb = LIMBS - 1; limb >= 0; limb--) {
		uint64_t rest = 0;

		for (int i = 0; i < MAX_BYTES; i++) {
			rest = rest << 8 | magnitude[i];
			magnitude[i] = (uint8_t)(rest / LIMB);
			rest %= LIMB;
		}
		for (int k = 8; k >= 0; k--, rest /= 10)
			all[9 * limb + k] = (char)('0' + rest % 10);
	}
	all[DIGITS] = 0;
	while (all[first] == '0')
		first++;
	strcpy(digits, all + first);
	return DIGITS - first;
}

/* Writes "-0.050" for the digits "50" and a scale of 3. */
static int write_decimal(char text[PARQUET_TEXT], const char *digits, int n, int scale, bool negative)
{
	char *to = text;

	if (negative)
		*to++ = '-';
	if (n <= scale)
		*to++ = '0';
	for (int i = n < scale ? scale : n; i > 0; i--) { /* digits that are left */
		if (i == scale)
			*to++ = '.';
		*to++ = i > n ? '0' : digits[n - i];
	}
	*to = 0;
	return (int)(to - text);
}

static int convert_decimal(
	const struct parquet_leaf *leaf, struct vfm_cell *cell, char text[PARQUET_TEXT], struct vfm_err *err)
{
	uint8_t bytes[8], magnitude[MAX_BYTES];
	char digits[DIGITS + 1];
	bool negative;
	int n;

	if (cell->type == VFM_CELL_INT) {
		for (int i = 0; i < 8; i++)
			bytes[i] = (uint8_t)((uint64_t)cell->i >> (56 - 8 * i));
		negative = split_sign(bytes, sizeof(bytes), magnitude);
	} else if (cell->text.len <= MAX_BYTES) {
		negative = split_sign((const uint8_t *)cell->text.s, cell->text.len, magnitude);
	} else {
		return vfm_fail(
			err, VFM_EINPUT, "a DECIMAL of %zu bytes; at most %d are read", cell->text.len, MAX_BYTES);
	}
	n = write_digits(magnitude, digits);
	if (n > leaf->precision)
		return vfm_fail(err, VFM_EINPUT, "a value of %d digits does not fit DECIMAL(%d, %d)", n,
			leaf->precision, leaf->scale);
	if (leaf->scale == 0 && leaf->precision <= INTEGER_DIGITS) {
		cell->type = VFM_CELL_INT;
		cell->i = strtoll(digits, NULL, 10) * (negative ? -1 : 1);
	} else if (leaf->precision <=
		EXACT_DIGITS) { /* both operands are exact, so the quotient is the nearest double */
		cell->type = VFM_CELL_REAL;
		cell->x = (double)strtoll(digits, NULL, 10) / pow(10, leaf->scale) * (negative ? -1 : 1);
	} else {
		cell->type = VFM_CELL_TEXT;
		cell->text.len = (size_t)write_decimal(text, digits, n, leaf->scale, negative);
		cell->text.s = text;
	}
	return 0;
}

/* ---- others ---- */

static int convert_uuid(struct vfm_cell *cell, char text[PARQUET_TEXT])
{
	static const char hex[] = "0123456789abcdef";
	char *to = text;

	for (int i = 0; i < 16; i++) {
		uint8_t b = (uint8_t)cell->text.s[i];

		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = hex[b >> 4];
		*to++ = hex[b & 15];
	}
	cell->text.s = text;
	cell->text.len = (size_t)(to - text);
	return 0;
}

/* IEEE 754 binary16. */
static int convert_float16(struct vfm_cell *cell)
{
	const uint8_t *b = (const uint8_t *)cell->text.s;
	int exponent = b[1] >> 2 & 31, fraction = (b[1] & 3) << 8 | b[0];
	double x;

	if (exponent == 31)
		x = fraction ? (double)NAN : (double)INFINITY;
	else
		x = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
	cell->type = VFM_CELL_REAL;
	cell->x = b[1] & 0x80 ? -x : x;
	return 0;
}

/* Nanoseconds of a day, then the Julian day. */
static int convert_int96(struct vfm_cell *cell, struct vfm_err *err)
{
	const uint8_t *b = (const uint8_t *)cell->text.s;
	uint64_t in_day = 0;
	uint32_t day = 0;
	int64_t t;

	for (int i = 0; i < 8; i++)
		in_day |= (uint64_t)b[i] << (8 * i);
	for (int i = 0; i < 4; i++)
		day |= (uint32_t)b[8 + i] << (8 * i);
	if (__builtin_mul_overflow((int64_t)(int32_t)day - 2440588, (int64_t)86400 * 1000000000, &t) ||
		__builtin_add_overflow(t, (int64_t)in_day, &t))
		return vfm_fail(err, VFM_EINPUT, "a time of the Julian day %d, beyond 1677 to 2262", (int32_t)day);
	cell->type = VFM_CELL_INT;
	cell->i = t;
	return 0;
}

int parquet_form_apply(
	const struct parquet_leaf *leaf, struct vfm_cell *cell, char text[PARQUET_TEXT], struct vfm_err *err)
{
	if (cell->type == VFM_CELL_NULL)
		return 0;
	if (leaf->form == PF_DECIMAL)
		return convert_decimal(leaf, cell, text, err);
	if (leaf->form == PF_UUID)
		return convert_uuid(cell, text);
	if (leaf->form == PF_FLOAT16)
		return convert_float16(cell);
	if (leaf->type == PT_INT96)
		return convert_int96(cell, err);
	return leaf->type == PT_INT64 && leaf->form == PF_UNSIGNED ? convert_unsigned(cell, err) : 0;
}
