/* pth.h - reads the tensors of a .pth file: a zip archive written by torch.save (PyTorch 1.6 and later).
 *
 * PREFIX/data.pkl is a pickle program (protocol 2) that builds a dictionary of tensors; PREFIX/data/KEY holds the
 * values of storage KEY.  The reader interprets the instructions that torch.save writes and the names in the tables of
 * pth.c.  It calls nothing and refuses everything else, including tensors that are not contiguous.  It bounds the
 * program and every shape, and bounds the memory of values by a multiple of the program.  Its time is linear in the
 * file.
 */
#ifndef VFM_CKPT_PTH_H
#define VFM_CKPT_PTH_H

#include <stdbool.h>

#include "ckpt/safetensors.h"

/* Returns whether the first `len` bytes (at least 16 for a valid file) are those of a zip archive. */
bool vfm_pth_is(const void *head, size_t len);

/* Fills *st with the tensors, named by their keys in the dictionary; st->data is 0, and the offsets are those in the
 * file.  If the result contains dictionaries ({"state_dict": {...}}), takes the only one that has tensors.  VFM_EUSAGE:
 * not such a file; the message names the file `name` and the tensor, instruction or name. */
int vfm_pth_open(struct vfm_st *st, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err);

#endif
