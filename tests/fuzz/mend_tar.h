/* mend_tar.h - corrects the checksums of a tar's headers, which would stop a fuzzer at the first one. */
#ifndef TESTS_FUZZ_MEND_TAR_H
#define TESTS_FUZZ_MEND_TAR_H

#include <stdio.h>
#include <string.h>

#include "io/tar.h"

static inline void mend_tar(uint8_t *b, size_t size)
{
	for (uint8_t *end = b + size / VFM_TAR_BLOCK * VFM_TAR_BLOCK; b < end; b += VFM_TAR_BLOCK) {
		unsigned sum = 0;

		if (!b[0])
			continue;
		memset(b + 148, ' ', 8);
		for (int i = 0; i < VFM_TAR_BLOCK; i++)
			sum += b[i];
		snprintf((char *)b + 148, 8, "%06o", sum);
	}
}

#endif
