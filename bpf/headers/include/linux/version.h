#ifndef LINUX_VERSION_CODE
#define LINUX_VERSION_CODE 0x061200 /* the loader says which kernel runs */
#endif
#define KERNEL_VERSION(a,b,c) (((a)<<16)+((b)<<8)+(c))
