/* pth.h - the tensors of a .pth file: a zip archive that torch.save has written (PyTorch 1.6 and later).
 *
 * PREFIX/data.pkl is a pickle program (protocol 2) that builds a dictionary of tensors; PREFIX/data/KEY holds the
 * values of storage KEY.  The reader interprets the instructions that torch.save writes and the names in the tables
 * of pth.c, calls nothing, and refuses all others, also tensors that are not contiguous.  It bounds the program,
 * every shape, and the memory of values by a multiple of the program.  Its time is linear in the file.
 */
#ifndef VFM_CKPT_PTH_H
#define VFM_CKPT_PTH_H

#include <stdbool.h>

#include "ckpt/safetensors.h"

/* Whether the first `len` bytes (at least 16 for a valid file) are those of a zip archive. */
bool vfm_pth_is(const void *head, size_t len);

/* Fills *st with the tensors, named by their keys in the dictionary; st->data is 0 and the offsets are those in the
 * file.  A dictionary in a dictionary ({"state_dict": {...}}) is taken if only one has tensors.  VFM_EUSAGE: no such
 * file; the message names the file `name` and the tensor, instruction or name. */
int vfm_pth_open(struct vfm_st *st, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err);

#endif
