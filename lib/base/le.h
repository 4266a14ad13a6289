/* le.h - little-endian numbers in files, at any alignment. */
#ifndef VFM_BASE_LE_H
#define VFM_BASE_LE_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t vfm_read_le(const void *p, size_t bytes) /* at most 8 */
{
	uint64_t x = 0;

	memcpy(&x, p, bytes);
	return le64toh(x);
}

static inline uint32_t vfm_read_le32(const void *p)
{
	return (uint32_t)vfm_read_le(p, 4);
}

/* Writes the low bytes of x. */
static inline void vfm_write_le(void *p, uint64_t x, size_t bytes)
{
	x = htole64(x);
	memcpy(p, &x, bytes);
}

#endif
