"""Tests of agents whose history the host keeps."""
